import type { Open, Retry, Time } from "./common.js";

/** A pull subscription to create or change. */
export interface PutSubscription {
  /** Event types; `*` in a pattern matches one or more characters. */
  patterns: string[];
  /** Lease of a pulled event: 100 to 43,200,000; 30 s by default. */
  lease_ms?: number | null | undefined;
  /** Overrides of the server's retry policy. */
  retry?: Retry | null | undefined;
}

/** A pull subscription. */
export interface Subscription {
  name: string;
  patterns: string[];
  lease_ms: number;
  retry: Retry | null;
  created_at: Time;
  updated_at: Time;
}

/** Options of a pull. */
export interface Pull {
  /** At most this many events: 1 to 100, 10 by default. */
  max?: number | null | undefined;
  /** Time to wait for the first event: up to 30,000; none by default. */
  wait_ms?: number | null | undefined;
  /** Lease of each event; that of the subscription by default. */
  lease_ms?: number | null | undefined;
}

/** A pulled event. No other consumer gets it until the lease ends. `payloadText(event)` returns the payload as it was written. */
export interface LeasedEvent<T = unknown> {
  /** Names the lease in ack, nack and extend. */
  lease: string;
  /** When the lease ends. */
  leased_until: Time;
  id: string;
  type: string;
  payload: T;
  metadata: Record<string, string>;
  created_at: Time;
  /** Number of the attempt, from 1. */
  attempt: number;
  /** Attempts in total. */
  max_attempts: number;
}

/** Leases of handled events. */
export interface Ack {
  /** The leases of the pulled events, 1 to 100. */
  leases: string[];
}

/** Outcome of a nack. `failed` charges an attempt, `snooze` does not and needs `delay_ms`, `permanent` dead-letters at once. */
export type NackOutcome = Open<"failed" | "snooze" | "permanent">;

/** Leases of events that could not be handled. */
export interface Nack {
  /** The leases of the pulled events, 1 to 100. */
  leases: string[];
  /** `failed` by default. */
  outcome?: NackOutcome | null | undefined;
  /** Shortest wait before the next delivery, at most a day; decided by the retry policy by default. */
  delay_ms?: number | null | undefined;
  /** Recorded as the error of the attempt, at most 4096 characters. */
  reason?: string | null | undefined;
}

/** Leases to extend. */
export interface Extend {
  /** The leases of the pulled events, 1 to 100. */
  leases: string[];
  /** Length of the lease from now on. */
  lease_ms: number;
}

/** Result of ack, nack or extend. */
export interface LeaseResults {
  /** Number of leases for which it worked. */
  done: number;
  /** Leases that had ended: their events are delivered again. */
  lost: string[];
}
