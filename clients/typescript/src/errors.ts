import type { Open } from "./types/common.js";

/** Kind of a problem. The server's codes never change; the last four are the client's own. */
export type ProblemCode = Open<
  | "invalid_request"
  | "invalid_batch"
  | "token_required"
  | "invalid_token"
  | "missing_scope"
  | "cross_origin"
  | "not_found"
  | "method_not_allowed"
  | "request_timeout"
  | "conflict"
  | "id_taken"
  | "not_dead"
  | "not_in_review"
  | "in_progress"
  | "too_large"
  | "unsupported_media_type"
  | "other_payload"
  | "reserved_type"
  | "rate_limited"
  | "internal"
  | "outcome_unknown"
  | "unavailable"
  | "shutting_down"
  | "network_error"
  | "timeout"
  | "unexpected_response"
  | "invalid_payload"
>;

/** Error of one item of a batch. */
export interface ItemError {
  /** Index of the item, from 0. */
  index: number;
  /** Details, and how to fix it. */
  detail: string;
}

/** Fields of a {@link RedriveError}. */
export interface RedriveErrorInit {
  code: ProblemCode;
  /** Status of the response; 0 if there was none. */
  status?: number;
  title?: string;
  detail: string;
  errors?: ItemError[];
  /** Wait that the server asked for. */
  retryAfterMs?: number | undefined;
  /** Whether the request may have taken effect although it failed. */
  outcomeUnknown?: boolean;
  cause?: unknown;
}

/** Error of a request. Compare `code`: the texts are for people. */
export class RedriveError extends Error {
  override readonly name: string = "RedriveError";
  /** Kind of the problem. */
  readonly code: ProblemCode;
  /** Status of the response; 0 if there was none. */
  readonly status: number;
  /** The kind of problem, for people. */
  readonly title: string;
  /** Details of this occurrence, and how to fix it. */
  readonly detail: string;
  /** Errors of single items of a batch. */
  readonly errors: readonly ItemError[];
  /** Wait that the server asked for. */
  readonly retryAfterMs: number | undefined;
  /** Whether the request may have taken effect although it failed. */
  readonly outcomeUnknown: boolean;
  /** Number of requests that were sent. */
  requests = 0;
  /** Idempotency key of the request. Repeating the call with this key is safe for 24 hours. */
  idempotencyKey: string | undefined;

  constructor(init: RedriveErrorInit) {
    super(init.detail, init.cause === undefined ? undefined : { cause: init.cause });
    this.code = init.code;
    this.status = init.status ?? 0;
    this.title = init.title ?? init.code;
    this.detail = init.detail;
    this.errors = init.errors ?? [];
    this.retryAfterMs = init.retryAfterMs;
    this.outcomeUnknown = init.outcomeUnknown ?? false;
  }
}

/** No complete response arrived: the server is unreachable, or the connection or the time limit ended first. */
export class NetworkError extends RedriveError {
  override readonly name = "NetworkError";
}

/** The payload cannot be written as JSON: it is undefined, a function, a bigint, or contains itself. */
export class InvalidPayloadError extends RedriveError {
  override readonly name = "InvalidPayloadError";

  constructor(reason: string, cause?: unknown) {
    super({ code: "invalid_payload", detail: `the payload cannot be written as JSON: ${reason}`, cause });
  }
}

/** Reads a problem document (RFC 9457), or describes a response without one. */
export function errorOfResponse(status: number, body: string, retryAfterMs: number | undefined): RedriveError {
  const problem = parseProblem(body);
  if (!problem) {
    const detail = `the server has answered ${status} without a problem document: is there a redrive server behind the address?`;
    // A proxy may have passed the request on before it answered.
    return new RedriveError({ code: "unexpected_response", status, detail, retryAfterMs, outcomeUnknown: status >= 500 });
  }
  const outcomeUnknown = problem.code === "outcome_unknown" || problem.code === "internal";
  return new RedriveError({ ...problem, status, retryAfterMs, outcomeUnknown });
}

function parseProblem(body: string): { code: string; title: string; detail: string; errors: ItemError[] } | undefined {
  try {
    const { code, title, detail, errors } = JSON.parse(body) as Record<string, unknown>;
    if (typeof code !== "string" || typeof detail !== "string") return undefined;
    return { code, title: String(title ?? code), detail, errors: Array.isArray(errors) ? (errors as ItemError[]) : [] };
  } catch {
    return undefined;
  }
}
