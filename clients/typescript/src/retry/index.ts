/** Retry policies as pure functions: the same delays and decisions as the server, pinned by shared test vectors. */
import type { RetryPolicy } from "./types.js";

export { backoffOf, delayMs, type Backoff } from "./backoff.js";
export * from "./decide.js";
export { identityHash } from "./identity.js";
export { parseJitter, type ExactJitter } from "./jitter.js";
export type * from "./types.js";

function doubling(maxAttempts: number, baseDelayMs: number, maxDelayMs: number): RetryPolicy {
  return { maxAttempts, baseDelayMs, maxDelayMs, multiplier: 2, jitter: "10%" };
}

/** Named policies of the server. */
export const presets = {
  /** Event bus: 3 retries, 1 s doubling up to 30 s, ±10 %. */
  bus: doubling(4, 1000, 30_000),
  /** Webhooks and `redrive serve`: 5 attempts, 1 s doubling up to 1 h, ±10 %. */
  webhook: doubling(5, 1000, 3_600_000),
  /** The schedule that Standard Webhooks recommends: 10 attempts in three days. */
  standard: { ...doubling(10, 5000, 86_400_000), growth: "standard_webhooks" },
  /** A receiver that may be away for days: 23 attempts in almost five days. */
  patient: doubling(23, 60_000, 28_800_000),
  /** Retry scheduler: 3 retries, 2 s doubling up to 60 s, plus 0 to 1 s. */
  scheduler: { ...doubling(4, 2000, 60_000), jitter: "0..1s" },
  /** A guarded call: 3 attempts, 1 s doubling up to 30 s, ±10 %. */
  call: doubling(3, 1000, 30_000),
} as const satisfies Record<string, RetryPolicy>;
