/** A text that is usually one of the known names. Names that this release does not know pass unchanged. */
export type Open<Name extends string> = Name | (string & {});

/** A point in time as RFC 3339, such as `2026-01-31T12:00:00.050Z`. */
export type Time = string;

/** One page of a list. */
export interface Page<T> {
  /** The entries. */
  data: T[];
  /** Pass it as `after` to get the next page; `null` on the last page. */
  next: string | null;
}

/** A list without pages. */
export interface List<T> {
  /** The entries. */
  data: T[];
}

/** Selects a page. */
export interface PageQuery {
  /** At most this many entries per page: 1 to 200, 100 by default. */
  limit?: number | undefined;
  /** Continue after this cursor: the `next` of the previous page. */
  after?: string | undefined;
}

/** Options of one call. */
export interface CallOptions {
  /** Aborts the call, its retries included. */
  signal?: AbortSignal | undefined;
}

/** Preset of attempts and waits. */
export type RetryPreset = Open<"standard" | "patient">;

/** Fields of a retry policy that differ from the server's policy. */
export interface Retry {
  /** Preset to start from. `standard` has fixed waits: it excludes `base_delay_ms` and `multiplier`. */
  preset?: RetryPreset | null | undefined;
  /** Attempts in total, including the first: 1 to 100. */
  max_attempts?: number | null | undefined;
  /** Wait before the second attempt: 1 to 86,400,000. */
  base_delay_ms?: number | null | undefined;
  /** Longest wait: 1 to 86,400,000. */
  max_delay_ms?: number | null | undefined;
  /** Factor between one wait and the next: 1 to 100. */
  multiplier?: number | null | undefined;
  /** Random spread of waits: `none`, `10%`, `0..1s`, `full`, `equal`. */
  jitter?: string | null | undefined;
}
