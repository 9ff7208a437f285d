import type { Open, Time } from "./common.js";

/** Permission of a token; `admin` includes the others. */
export type Scope = Open<"publish" | "read" | "consume" | "admin">;

/** A token to create. */
export interface CreateToken {
  /** Name for people, 1 to 100 characters. */
  name: string;
  scopes: Scope[];
  /** Life of the token in seconds; without it the token does not expire. */
  expires_in_s?: number | null | undefined;
}

/** A token without its secret. */
export interface Token {
  id: string;
  name: string;
  scopes: Scope[];
  created_at: Time;
  /** `null` for never. */
  expires_at: Time | null;
  /** Last use, to the hour; `null` for never. */
  last_used_at: Time | null;
}

/** A new token. */
export interface CreatedToken extends Token {
  /** The token itself. No other response shows it. */
  token: string;
}

/** Counts over the whole store. */
export interface Stats {
  /** Events waiting for their first attempt. */
  pending: number;
  /** Events in flight, or waiting for another attempt. */
  processing: number;
  /** Events handled and still kept. */
  done: number;
  /** Events in the dead-letter queue. */
  dlq: number;
  /** Deliveries to single subscriptions that are not finished. */
  open_deliveries: number;
  /** Deliveries in flight in the responding process. */
  in_flight: number;
  /** Size of the database. */
  file_bytes: number;
  /** Size of its write-ahead log, for a file. */
  wal_bytes: number;
}

/** Work that waits, as the responding process sees it. */
export interface Diagnostics {
  /** Time by which deliveries are due, to compare clocks. */
  now: Time;
  /** Events and deliveries that have been due for more than a minute. */
  overdue: number;
  /** Endpoints that the responding process cannot read. */
  unreadable_endpoints: number;
  /** Deliveries that wait, by subscription: at most 100, those with the most deliveries first. */
  waiting: WaitingDeliveries[];
}

/** Deliveries of one subscription that wait. */
export interface WaitingDeliveries {
  /** Name of the subscription, or id of the endpoint. */
  subscription: string;
  /** Whether the subscription is on record. */
  on_record: boolean;
  /** Deliveries that are due now. */
  due: number;
  /** Deliveries without a failed attempt that are due later. */
  parked: number;
  oldest_parked_at: Time | null;
  /** Deliveries that wait between two attempts. */
  retrying: number;
  /** Deliveries that wait for a concurrency or rate limit. */
  backlogged: number;
  oldest_backlogged_at: Time | null;
}
