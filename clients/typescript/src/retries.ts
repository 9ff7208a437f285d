import { delayMs } from "./retry/backoff.js";
import type { RetryPolicy } from "./retry/types.js";
import type { RedriveError } from "./errors.js";

/** When the client repeats a request. */
export interface RetryOptions {
  /** Requests in total, including the first; 6 by default, 1 for no repetition. */
  maxAttempts?: number | undefined;
  /** Wait before the first repetition; 200 ms by default, doubling. */
  baseDelayMs?: number | undefined;
  /** Longest wait of the client's own; 5 s by default. */
  maxDelayMs?: number | undefined;
  /** Random part of the waits; `equal` by default. */
  jitter?: RetryPolicy["jitter"] | undefined;
  /** Longest `Retry-After` that is waited for; 30 s by default. A longer one is an error at once. */
  maxRetryAfterMs?: number | undefined;
  /** No repetition begins later than this after the first request; 60 s by default. */
  deadlineMs?: number | undefined;
}

/** Retry options with their defaults. */
export interface RetrySettings extends RetryPolicy {
  maxRetryAfterMs: number;
  deadlineMs: number;
}

/** Fills in the defaults. */
export function retrySettings(options: RetryOptions = {}): RetrySettings {
  return {
    maxAttempts: options.maxAttempts ?? 6,
    baseDelayMs: options.baseDelayMs ?? 200,
    maxDelayMs: options.maxDelayMs ?? 5000,
    multiplier: 2,
    jitter: options.jitter ?? "equal",
    maxRetryAfterMs: options.maxRetryAfterMs ?? 30_000,
    deadlineMs: options.deadlineMs ?? 60_000,
  };
}

/** Whether a request may be repeated after an error that leaves open whether it took effect. */
export type Repeat = "always" | "if_refused";

/** Codes of problems after which nothing was done, and a later request may succeed. */
const REFUSED_FOR_NOW = new Set<string>(["rate_limited", "unavailable", "shutting_down", "in_progress", "request_timeout"]);

/** Whether a failed request may be sent again unchanged. */
export function isRepeatable(error: RedriveError, repeat: Repeat): boolean {
  if (REFUSED_FOR_NOW.has(error.code) || error.status === 429) return true;
  const isTransient = error.status === 0 || error.status === 408 || error.status >= 500;
  return repeat === "always" && isTransient && error.code !== "invalid_payload";
}

/**
 * Decides how long to wait before sending a failed request again; `undefined` for giving up.
 *
 * `attempt` is the number of the request that failed, from 1; `elapsedMs` the time since the first one began.
 */
export function waitBeforeRepeat(
  settings: RetrySettings,
  error: RedriveError,
  repeat: Repeat,
  attempt: number,
  elapsedMs: number,
  identity: { event: string; subscription: string },
): number | undefined {
  if (attempt >= settings.maxAttempts || !isRepeatable(error, repeat)) return undefined;
  const asked = error.retryAfterMs ?? 0;
  if (asked > settings.maxRetryAfterMs) return undefined;
  const wait = Math.max(delayMs(settings, attempt + 1, identity), asked);
  return elapsedMs + wait > settings.deadlineMs ? undefined : wait;
}

/** Reads `Retry-After`: seconds, or a date of HTTP. `undefined` if it is missing or unreadable. */
export function parseRetryAfter(header: string | null, now: number): number | undefined {
  const text = header?.trim();
  if (!text) return undefined;
  if (/^[0-9]+$/.test(text)) return Number(text) * 1000;
  const at = /[a-z]/i.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, at - now);
}
