import { linkSignals, sleep, type Clock } from "./clock.js";
import { NetworkError, RedriveError, errorOfResponse } from "./errors.js";
import { parseRetryAfter, waitBeforeRepeat, type Repeat, type RetrySettings } from "./retries.js";

/** The part of `fetch` that the client uses. */
export type Fetch = (url: string, init: FetchInit) => Promise<FetchResponse>;

/** Arguments of the client for `fetch`. */
export interface FetchInit {
  method: string;
  headers: Record<string, string>;
  body?: string;
  signal: AbortSignal;
  redirect: "manual";
}

/** The part of a response that the client reads. */
export interface FetchResponse {
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  text(): Promise<string>;
  readonly body: unknown;
}

/** One request of the client. */
export interface HttpRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Path below the server's address. Encode its parts. */
  path: string;
  query?: object | undefined;
  /** Body as JSON text. */
  body?: string | undefined;
  headers?: Record<string, string> | undefined;
  /** Whether it may be repeated after an error that leaves open whether it took effect. */
  repeat: Repeat;
  signal?: AbortSignal | undefined;
  /** Time limit of one attempt. */
  timeoutMs?: number | undefined;
}

/** Settings of a connection to a server. */
export interface HttpSettings {
  url: string;
  token: string | undefined;
  fetch: Fetch;
  clock: Clock;
  retries: RetrySettings;
  timeoutMs: number;
}

/** Sends requests to one server, and repeats those that are safe to repeat. */
export class Http {
  readonly #settings: HttpSettings;

  constructor(settings: HttpSettings) {
    this.#settings = settings;
  }

  /** Sends a request until it succeeds or the retries are exhausted; returns the text of the response. */
  async text(request: HttpRequest): Promise<string> {
    const { clock, retries } = this.#settings;
    const startedAt = clock.now();
    const identity = {
      event: request.headers?.["idempotency-key"] ?? String(Math.random()),
      subscription: `${request.method} ${request.path}`,
    };
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#once(request, async (response) => response.text());
      } catch (error) {
        if (!(error instanceof RedriveError)) throw error; // aborted by the caller
        error.requests = attempt;
        error.idempotencyKey = request.headers?.["idempotency-key"];
        const wait = waitBeforeRepeat(retries, error, request.repeat, attempt, clock.now() - startedAt, identity);
        if (wait === undefined) throw error;
        await sleep(clock, wait, request.signal);
      }
    }
  }

  /** Sends a request like {@link text}, and reads the response as JSON. */
  async json<T>(request: HttpRequest): Promise<T> {
    return readJson<T>(await this.text(request));
  }

  /** Opens a response whose body is read as a stream. It has no time limit. */
  async open(request: HttpRequest): Promise<FetchResponse> {
    return this.#once({ ...request, timeoutMs: 0 }, (response) => Promise.resolve(response));
  }

  async #once<T>(request: HttpRequest, read: (response: FetchResponse) => Promise<T>): Promise<T> {
    const { clock, fetch, token, url } = this.#settings;
    const timeoutMs = request.timeoutMs ?? this.#settings.timeoutMs;
    const link = linkSignals([request.signal]);
    const onTimeout = () => {
      const detail = `no complete response from ${url} within ${timeoutMs} ms`;
      link.abort(new NetworkError({ code: "timeout", detail, outcomeUnknown: true }));
    };
    const timer = timeoutMs > 0 ? clock.setTimeout(onTimeout, timeoutMs) : undefined;
    try {
      request.signal?.throwIfAborted();
      const response = await fetch(url + withQuery(request.path, request.query), {
        method: request.method,
        headers: {
          accept: "application/json",
          ...(request.body === undefined ? {} : { "content-type": "application/json" }),
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          ...request.headers,
        },
        ...(request.body === undefined ? {} : { body: request.body }),
        signal: link.signal,
        redirect: "manual",
      });
      if (response.status >= 200 && response.status < 300) return await read(response);
      const retryAfter = parseRetryAfter(response.headers.get("retry-after"), clock.now());
      throw errorOfResponse(response.status, await response.text(), retryAfter);
    } catch (error) {
      if (error instanceof RedriveError) throw error;
      if (request.signal?.aborted) throw request.signal.reason;
      if (link.signal.aborted) throw link.signal.reason;
      const hint = "check the address, and that `redrive serve` runs there";
      const detail = `cannot reach ${url}: ${innermost(error)}; ${hint}`;
      throw new NetworkError({ code: "network_error", detail, outcomeUnknown: true, cause: error });
    } finally {
      if (timer !== undefined) clock.clearTimeout(timer);
      if (timeoutMs > 0) link.release(); // a stream stays linked to its caller
    }
  }
}

/** Reads a response as JSON. */
export function readJson<T>(text: string): T {
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    const detail = "the response is not JSON: is there a redrive server behind the address?";
    throw new RedriveError({ code: "unexpected_response", detail, cause });
  }
}

/** Encodes a part of a path. */
export function encoded(part: string): string {
  return encodeURIComponent(part);
}

function withQuery(path: string, query: object = {}): string {
  const pairs = Object.entries(query)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => [name, value instanceof Date ? value.toISOString() : String(value)]);
  return pairs.length === 0 ? path : `${path}?${new URLSearchParams(pairs as [string, string][]).toString()}`;
}

/** The innermost cause says the most: `fetch failed` alone says nothing. */
function innermost(error: unknown): string {
  let deepest = error;
  for (let depth = 0; depth < 8 && deepest instanceof Error && deepest.cause !== undefined; depth += 1) deepest = deepest.cause;
  if (!(deepest instanceof Error)) return String(deepest);
  const code = (deepest as { code?: unknown }).code;
  return deepest.message || (typeof code === "string" ? code : deepest.name);
}
