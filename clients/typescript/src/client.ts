import { systemClock, type Clock } from "./clock.js";
import { randomHex } from "./crypto.js";
import { Http, type Fetch } from "./http.js";
import { Dlq } from "./resources/dlq.js";
import { Endpoints } from "./resources/endpoints.js";
import { Events } from "./resources/events.js";
import { Replays, Tokens } from "./resources/admin.js";
import { Subscriptions } from "./resources/subscriptions.js";
import { retrySettings, type RetryOptions } from "./retries.js";
import type { Diagnostics, Stats } from "./types/admin.js";
import type { CallOptions } from "./types/common.js";
import type { PublishEvent, PublishOptions, PublishedEvent } from "./types/events.js";
import { Worker } from "./worker/worker.js";
import type { Handler, WorkerOptions } from "./worker/options.js";

/** Options of a client. */
export interface RedriveOptions {
  /** Address of the server; `REDRIVE_SERVER`, or `http://127.0.0.1:8080` by default. */
  url?: string | undefined;
  /** Bearer token, `rdt_…`; `REDRIVE_TOKEN` by default. */
  token?: string | undefined;
  /** Another `fetch`, such as one with a proxy or an agent. */
  fetch?: Fetch | undefined;
  /** When requests are repeated. */
  retries?: RetryOptions | undefined;
  /** Time limit of one attempt of a request; 30 s by default. */
  timeoutMs?: number | undefined;
  /** Returns the current trace context (W3C `traceparent`), which published events carry. */
  traceparent?: (() => string | undefined) | undefined;
  /** Another source of time, for tests. */
  clock?: Clock | undefined;
}

/**
 * Client of a Redrive server. Objects of the API have the names of the API document; options of the client are in camel case.
 *
 * ```ts
 * const redrive = new Redrive({ url: "http://127.0.0.1:8080" });
 * const { id } = await redrive.publish({ type: "order.created", payload: { order: 7 } });
 * for await (const letter of redrive.dlq.list({ type: "order.created" })) console.log(letter.errors);
 * ```
 */
export class Redrive {
  /** Address of the server. */
  readonly url: string;
  /** Publishes events and looks them up. */
  readonly events: Events;
  /** Looks at dead letters, redrives and deletes them. */
  readonly dlq: Dlq;
  /** Manages the receivers of webhooks. */
  readonly endpoints: Endpoints;
  /** Manages pull subscriptions, pulls events and settles them. */
  readonly subscriptions: Subscriptions;
  /** Looks at replays and cancels them. */
  readonly replays: Replays;
  /** Creates, lists and revokes tokens. */
  readonly tokens: Tokens;
  /** Source of time of this client and its workers. */
  readonly clock: Clock;
  readonly #http: Http;

  constructor(options: RedriveOptions = {}) {
    this.url = checkedUrl(options.url ?? fromEnvironment("REDRIVE_SERVER") ?? "http://127.0.0.1:8080");
    this.clock = options.clock ?? systemClock;
    const given = options.fetch ?? (globalThis.fetch as unknown as Fetch);
    this.#http = new Http({
      url: this.url,
      token: (options.token ?? fromEnvironment("REDRIVE_TOKEN"))?.trim() || undefined,
      fetch: (url, init) => given(url, init), // some platforms insist on their own `this`
      clock: this.clock,
      retries: retrySettings(options.retries),
      timeoutMs: options.timeoutMs ?? 30_000,
    });
    this.events = new Events(this.#http, keys(), options.traceparent ?? (() => undefined));
    this.dlq = new Dlq(this.#http);
    this.endpoints = new Endpoints(this.#http);
    this.subscriptions = new Subscriptions(this.#http);
    this.replays = new Replays(this.#http);
    this.tokens = new Tokens(this.#http);
  }

  /** Publishes an event; returns when it is on stable storage. Repeated requests store it once. */
  publish<T>(event: PublishEvent<T>, options: PublishOptions = {}): Promise<PublishedEvent> {
    return this.events.publish(event, options);
  }

  /** Publishes many events. A batch of up to 10,000 is stored as a whole or not at all. */
  publishMany<T>(events: readonly PublishEvent<T>[], options: PublishOptions = {}): Promise<PublishedEvent[]> {
    return this.events.publishMany(events, options);
  }

  /** Starts a worker that pulls the events of a subscription and handles them until it is stopped. */
  worker<T = unknown>(subscription: string, handler: Handler<T>, options: WorkerOptions = {}): Worker {
    return new Worker(this, subscription, handler as Handler, options);
  }

  /** Counts events by status. */
  stats(options: CallOptions = {}): Promise<Stats> {
    return this.#http.json({ ...options, method: "GET", path: "/v1/stats", repeat: "always" });
  }

  /** Counts the work that waits, by subscription. */
  diagnostics(options: CallOptions = {}): Promise<Diagnostics> {
    return this.#http.json({ ...options, method: "GET", path: "/v1/diagnostics", repeat: "always" });
  }

  /** Checks that the server accepts requests and its store answers. */
  ready(options: CallOptions = {}): Promise<{ status: string }> {
    return this.#http.json({ ...options, method: "GET", path: "/readyz", repeat: "always" });
  }
}

/** Generates idempotency keys: a random prefix of the client, and a counter. */
function keys(): () => Promise<string> {
  let prefix: Promise<string> | undefined;
  let count = 0;
  return async () => {
    prefix ??= randomHex(16);
    count += 1;
    const number = count;
    return `${await prefix}-${number}`;
  };
}

function checkedUrl(text: string): string {
  const hint = "use an address such as https://events.example.com or http://127.0.0.1:8080";
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new TypeError(`${JSON.stringify(text)} is not an address: ${hint}`);
  }
  // A password in the address would be shown in errors, and never sent.
  if (!/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
    throw new TypeError(`the address of the server has a part that does not belong there: ${hint}`);
  }
  return text.trim().replace(/\/+$/, "");
}

function fromEnvironment(name: string): string | undefined {
  try {
    const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
    return process?.env?.[name] || undefined;
  } catch {
    return undefined; // Deno without the permission to read the environment
  }
}
