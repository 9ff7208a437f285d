import { InvalidPayloadError } from "./errors.js";
import type { PublishEvent } from "./types/events.js";

/**
 * JSON text that is sent exactly as it is written, such as integers above 2^53.
 *
 * ```ts
 * await redrive.publish({ type: "ledger.booked", payload: new RawJson('{"amount": 9007199254740993}') });
 * ```
 */
export class RawJson {
  /** The text. */
  readonly text: string;

  constructor(text: string) {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new InvalidPayloadError("the raw text is not JSON", error);
    }
    this.text = text;
  }
}

/** Writes a payload as JSON; throws {@link InvalidPayloadError} if that is impossible. */
export function payloadToJson(payload: unknown): string {
  if (payload instanceof RawJson) return payload.text;
  let text: string | undefined;
  try {
    text = JSON.stringify(payload);
  } catch (error) {
    throw new InvalidPayloadError(error instanceof Error ? error.message : String(error), error);
  }
  if (text === undefined) throw new InvalidPayloadError(`it is ${typeof payload}; publish null for an event without data`);
  return text;
}

/** Writes an event to publish as JSON. */
export function eventToJson(event: PublishEvent): string {
  const { payload, ...rest } = event;
  return `${JSON.stringify(rest).slice(0, -1)},"payload":${payloadToJson(payload)}}`;
}

const payloadTexts = new WeakMap<object, () => string>();

/**
 * Returns the payload of an event as the server wrote it, so that integers above 2^53 stay exact.
 *
 * Takes objects that this client returned: `Event`, `DeadLetter`, `LeasedEvent`. Other objects are serialised again.
 */
export function payloadText(event: { payload: unknown }): string {
  return payloadTexts.get(event)?.() ?? payloadToJson(event.payload);
}

/** Remembers where the payload texts of a response are. The text is scanned only when a payload is asked for. */
export function rememberPayloads(response: string, value: unknown): void {
  const data = (value as { data?: unknown }).data;
  const entries = Array.isArray(data) ? (data as unknown[]) : [value];
  let texts: string[] | undefined;
  entries.forEach((entry, index) => {
    if (typeof entry !== "object" || entry === null || !("payload" in entry)) return;
    payloadTexts.set(entry, () => (texts ??= findPayloads(response, Array.isArray(data)))[index] ?? "null");
  });
}

function findPayloads(text: string, isList: boolean): string[] {
  const root = members(text, skipSpace(text, 0));
  if (!isList) return [slice(text, root.get("payload"))];
  return elements(text, root.get("data")?.[0] ?? text.length).map((start) => slice(text, members(text, start).get("payload")));
}

type Span = [start: number, end: number];

function slice(text: string, span: Span | undefined): string {
  return span ? text.slice(...span) : "null";
}

/** Finds the positions of the values in the object at `start`. The text is valid JSON. */
function members(text: string, start: number): Map<string, Span> {
  const found = new Map<string, Span>();
  let at = skipSpace(text, start + 1);
  while (at < text.length && text[at] !== "}") {
    const keyEnd = skipString(text, at);
    const key = JSON.parse(text.slice(at, keyEnd)) as string;
    const valueStart = skipSpace(text, skipSpace(text, keyEnd) + 1);
    const valueEnd = skipValue(text, valueStart);
    found.set(key, [valueStart, valueEnd]);
    at = skipSpace(text, valueEnd);
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
  return found;
}

/** Finds the positions of the elements in the array at `start`. */
function elements(text: string, start: number): number[] {
  const found: number[] = [];
  let at = skipSpace(text, start + 1);
  while (at < text.length && text[at] !== "]") {
    found.push(at);
    at = skipSpace(text, skipValue(text, at));
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
  return found;
}

function skipSpace(text: string, at: number): number {
  while (at < text.length && " \t\n\r".includes(text.charAt(at))) at += 1;
  return at;
}

function skipString(text: string, at: number): number {
  for (at += 1; at < text.length && text[at] !== '"'; at += 1) if (text[at] === "\\") at += 1;
  return at + 1;
}

function skipValue(text: string, at: number): number {
  let depth = 0;
  while (at < text.length) {
    const char = text[at];
    if (char === '"') {
      at = skipString(text, at);
      if (depth === 0) return at;
      continue;
    }
    if (char === "{" || char === "[") depth += 1;
    else if (char === "}" || char === "]") {
      if (depth === 0) return at; // a number or a word ends with its container
      depth -= 1;
      if (depth === 0) return at + 1;
    } else if (depth === 0 && (char === "," || " \t\n\r".includes(char ?? ""))) return at;
    at += 1;
  }
  return at;
}
