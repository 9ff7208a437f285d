import type { LeasedEvent, Nack } from "../types/subscriptions.js";

/** Longest `reason` of a nack, in characters. */
const MAX_REASON_CHARS = 4096;

/** Longest `delay_ms` of a nack: a day. */
const MAX_DELAY_MS = 86_400_000;

/** Thrown by a handler to have the event delivered again later. No attempt is charged. */
export class Snooze extends Error {
  override readonly name = "Snooze";
  /** Wait before the next delivery, in milliseconds. */
  readonly delayMs: number;

  constructor(delayMs: number, reason = "snoozed by its handler") {
    super(reason);
    this.delayMs = delayMs;
  }
}

/** Thrown by a handler when a retry is of no use: the event is dead-lettered at once. */
export class PermanentError extends Error {
  override readonly name = "PermanentError";

  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
  }
}

/** Thrown by a handler to fail the attempt and to have the next one not before `delayMs`. */
export class RetryAfter extends Error {
  override readonly name = "RetryAfter";
  /** Shortest wait before the next attempt, in milliseconds. */
  readonly retryAfterMs: number;

  constructor(delayMs: number, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.retryAfterMs = delayMs;
  }
}

/** The reason with which the signal of a handler aborts after its timeout. */
export class HandlerTimeoutError extends Error {
  override readonly name = "HandlerTimeoutError";
}

/** The reason with which the signal of a handler aborts when another consumer may have its event. */
export class LeaseLostError extends Error {
  override readonly name = "LeaseLostError";
}

/** How an event is settled. */
export type Settlement = { kind: "ack" } | ({ kind: "nack" } & Omit<Nack, "leases">);

/** Decides how an event is settled whose handler threw. */
export function settlementOf(
  error: unknown,
  event: LeasedEvent,
  delayOf?: (event: LeasedEvent, error: unknown) => number | undefined,
): Settlement {
  if (error instanceof Snooze) {
    return { kind: "nack", outcome: "snooze", delay_ms: Math.max(1, delay(error.delayMs) ?? 1), reason: cut(error.message) };
  }
  if (error instanceof PermanentError) return { kind: "nack", outcome: "permanent", reason: reasonOf(error) };
  const asked = (error as { retryAfterMs?: unknown } | null | undefined)?.retryAfterMs;
  const delay_ms = delay(typeof asked === "number" ? asked : delayOf?.(event, error));
  return { kind: "nack", reason: reasonOf(error), ...(delay_ms === undefined ? {} : { delay_ms }) };
}

function delay(ms: number | undefined): number | undefined {
  return ms === undefined || Number.isNaN(ms) ? undefined : Math.min(MAX_DELAY_MS, Math.max(0, Math.ceil(ms)));
}

/** Describes what a handler threw: message, stack and causes, at most 4096 characters. */
export function reasonOf(error: unknown): string {
  const parts: string[] = [];
  let current = error;
  for (let depth = 0; depth < 8; depth += 1) {
    parts.push(describe(current));
    if (!(current instanceof Error) || current.cause === undefined) break;
    current = current.cause;
  }
  return cut(parts.join("\nCaused by: "));
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) {
    try {
      return typeof error === "string" ? error : `thrown: ${JSON.stringify(error) ?? String(error)}`;
    } catch {
      return "thrown: a value that cannot be written as text";
    }
  }
  const { stack } = error;
  const head = error.message ? `${error.name}: ${error.message}` : error.name;
  // Only V8 begins the stack with the message, and with the name of the class.
  if (!stack) return head;
  const firstFrame = stack.search(/^\s+at |^[^\n]*@/m);
  return firstFrame < 0 ? head : `${head}\n${stack.slice(firstFrame).replace(/^\n/, "")}`;
}

/** Cuts a text to the characters that a reason may have. Half surrogate pairs, which are no text, are replaced. */
function cut(text: string): string {
  const whole = Array.from(text.slice(0, 2 * MAX_REASON_CHARS), (char) => (/^[\ud800-\udfff]$/.test(char) ? "\ufffd" : char));
  if (whole.length <= MAX_REASON_CHARS) return whole.join("");
  return `${whole.slice(0, MAX_REASON_CHARS - 1).join("")}…`;
}
