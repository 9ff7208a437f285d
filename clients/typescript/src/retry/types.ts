/** Random part of a delay: as text (`none`, `10%`, `0..1s`, `full`, `equal`) or as a value. */
export type Jitter =
  | { kind: "none" }
  /** `delay ± factor · delay`, never above the longest delay. */
  | { kind: "proportional"; factor: number }
  /** `delay + 0..=ms`, on top of the longest delay. */
  | { kind: "additive"; ms: number }
  /** `0..=delay`. */
  | { kind: "full" }
  /** `delay/2 ..= delay`. */
  | { kind: "equal" };

/** Number of attempts and the delays between them. Delays are whole milliseconds. */
export interface RetryPolicy {
  /** Largest number of attempts, the first one included. */
  maxAttempts: number;
  /** Delay before the second attempt. */
  baseDelayMs: number;
  /** Longest delay, without jitter. */
  maxDelayMs: number;
  /** Factor between consecutive delays, from 1. */
  multiplier: number;
  /** Random part of the delays. */
  jitter: Jitter | string;
  /** `standard_webhooks` has the fixed delays that Standard Webhooks recommends. `exponential` by default. */
  growth?: "exponential" | "standard_webhooks" | undefined;
  /** Time limit of all attempts and delays together. */
  deadlineMs?: number | undefined;
}

/** Seeds the jitter of one delivery or call: equal identities have equal delays, in any language. */
export interface Identity {
  /** Seed of an installation or run, an unsigned 64-bit number. 0 by default. */
  seed?: number | bigint | undefined;
  /** Event id, or id of a call. */
  event: string;
  /** Subscription name, or operation of a call. */
  subscription: string;
}
