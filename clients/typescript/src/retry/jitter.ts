import type { Jitter } from "./types.js";

const UNITS: Record<string, number> = {
  ms: 1, msec: 1, millis: 1,
  s: 1000, sec: 1000, secs: 1000, second: 1000, seconds: 1000,
  m: 60_000, min: 60_000, mins: 60_000, minute: 60_000, minutes: 60_000,
  h: 3_600_000, hr: 3_600_000, hrs: 3_600_000, hour: 3_600_000, hours: 3_600_000,
  d: 86_400_000, day: 86_400_000, days: 86_400_000,
};

/** Reads a jitter as policies write it: `none`, `10%`, `0..1s`, `full`, `equal`. */
export function parseJitter(text: string): Jitter {
  const jitter = text.trim();
  if (jitter === "none" || jitter === "full" || jitter === "equal") return { kind: jitter };
  const percent = /^±*\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*%$/i.exec(jitter)?.[1];
  const factor = percent === undefined ? NaN : Number(percent) / 100;
  if (factor >= 0 && factor <= 1) return { kind: "proportional", factor };
  const ms = jitter.startsWith("0..") ? parseDuration(jitter.slice(3)) : undefined;
  if (ms !== undefined) return { kind: "additive", ms };
  throw new RangeError(`${JSON.stringify(text.slice(0, 64))} is not a jitter: use none, 10%, 0..1s, full, equal`);
}

/** Reads `250ms`, `1s` or `1h 30m` in milliseconds; `undefined` if the text is no duration of whole milliseconds. */
export function parseDuration(text: string): number | undefined {
  const trimmed = text.trim();
  if (trimmed === "0") return 0;
  if (!/^(\s*[0-9]+(\.[0-9]+)?\s*[a-z]+)+$/i.test(trimmed)) return undefined;
  let sum = 0;
  for (const [, number, unit] of trimmed.matchAll(/([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)/gi)) {
    const factor = UNITS[unit ?? ""];
    if (factor === undefined) return undefined;
    sum += Number(number) * factor;
  }
  return Math.abs(sum - Math.round(sum)) < 1e-6 ? Math.round(sum) : undefined;
}

/** A jitter in whole numbers, as decision records have it. */
export type ExactJitter =
  | "none"
  | "full"
  | "equal"
  | { proportional: { millionths: number } }
  | { additive: { ms: number } };

/** Writes a jitter in whole numbers. */
export function exactJitter(jitter: Jitter | string): ExactJitter {
  const value = typeof jitter === "string" ? parseJitter(jitter) : jitter;
  switch (value.kind) {
    case "proportional":
      return { proportional: { millionths: Math.round(value.factor * 1e6) } };
    case "additive":
      return { additive: { ms: value.ms } };
    default:
      return value.kind;
  }
}
