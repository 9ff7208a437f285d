import type { Attempt } from "./events.js";
import type { Open, Time } from "./common.js";

/** Reason for which an event was dead-lettered. */
export type DeadReason = Open<
  "permanent" | "attempts_exhausted" | "deadline_exceeded" | "budget_spent" | "wait_too_long" | "no_subscription"
>;

/** Selects dead letters; every given field must match. */
export interface DlqFilter {
  /** Only events of this type. */
  type?: string | undefined;
  /** Only events published at or after this time. */
  since?: Time | Date | undefined;
  /** Only events published before this time. */
  until?: Time | Date | undefined;
  /** Only events with this reason. */
  reason?: DeadReason | undefined;
  /** Only events with this text in one of their errors. */
  text?: string | undefined;
  /** Only events with this error fingerprint, as `groups` shows it; with `subscription` one group. */
  fingerprint?: string | undefined;
  /** Only dead letters of this endpoint or subscription. */
  subscription?: string | undefined;
}

/** A dead letter in a list: without payload and attempts. */
export interface DeadSummary {
  id: string;
  type: string;
  /** The subscription whose delivery died, if deliveries are tracked one by one. */
  subscription: string | null;
  metadata: Record<string, string>;
  /** Number of failed attempts. */
  retry_count: number;
  created_at: Time;
  /** When it was dead-lettered. */
  dlq_at: Time;
  reason: DeadReason;
  /** Every error of every attempt. */
  errors: string[];
}

/** A dead letter with payload and attempts. `payloadText(letter)` returns the payload as it was written. */
export interface DeadLetter<T = unknown> extends DeadSummary {
  /** The payload as it was published or last edited. */
  payload: T;
  attempts: Attempt[];
}

/** Dead letters with the same target and error fingerprint. */
export interface DeadGroup {
  /** The endpoint or subscription that failed, for the filter `subscription`. */
  target: string | null;
  /** The error without its variable parts; an HTTP status is kept. */
  fingerprint: string;
  count: number;
  /** Types of the events, at most 20. */
  types: string[];
  /** One of the errors. */
  example: string;
  /** Id of the event with this error. */
  example_id: string;
  first_at: Time;
  last_at: Time;
}

/** Groups of dead letters, the largest first. */
export interface DeadGroups {
  data: DeadGroup[];
  /** Whether smaller groups are left out. */
  has_more: boolean;
}

/** An event that was redriven. */
export interface RetriedDead {
  id: string;
}

/** Selects the events to redrive, and how. */
export interface RetryDeadMany {
  /** The events; `{}` selects all. */
  filter: DlqFilter;
  /** Count the events and change nothing. */
  dry_run?: boolean | undefined;
  /** Events per second, 1 to 1000. Due times are assigned at once, so the rate holds across a restart. */
  rate?: number | null | undefined;
  /** At most this many events with this request: 1 to 10,000, 1000 by default. */
  limit?: number | null | undefined;
  /** Continue after this cursor: the `next` of the previous response. */
  after?: string | null | undefined;
}

/** Result of redriving by filter. */
export interface RetryReport {
  /** Events that the filter matched. */
  matched: number;
  /** Events that were redriven; 0 for a dry run. */
  retried: number;
  /** Pass it as `after` to continue; `null` at the end. */
  next: string | null;
}

/** Result of a purge. */
export interface Purged {
  /** Number of deleted dead letters. */
  purged: number;
}
