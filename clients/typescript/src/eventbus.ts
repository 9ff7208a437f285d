/** The `EventBus` of the specification, over a server: publish, subscribe with a handler, unsubscribe, shut down. */
import { Redrive, type RedriveOptions } from "./client.js";
import { InvalidPayloadError } from "./errors.js";
import type { Retry } from "./types/common.js";
import type { LeasedEvent } from "./types/subscriptions.js";
import type { Worker } from "./worker/worker.js";

export { InvalidPayloadError };

/** Retry policy of a subscription. */
export interface RetryPolicy {
  maxRetries: number;
  baseDelayMs: number;
  maxDelayMs: number;
  backoffMultiplier: number;
}

/** The policy of subscriptions without one of their own. */
export const DEFAULT_RETRY_POLICY: RetryPolicy = {
  maxRetries: 3,
  baseDelayMs: 1000,
  maxDelayMs: 30000,
  backoffMultiplier: 2,
};

/** Status of an event. */
export type EventStatus = "pending" | "processing" | "done" | "dlq";

/** An event as its handler sees it. */
export interface Event<T = unknown> {
  id: string;
  type: string;
  payload: T;
  createdAt: Date;
  status: EventStatus;
  /** Number of failed attempts. */
  retryCount: number;
  metadata?: Record<string, string>;
}

/** Handles one event: it is done when the promise resolves, and retried when it rejects. */
export type EventHandler<T = unknown> = (event: Event<T>) => Promise<void>;

/** Options of one subscription. */
export interface SubscribeOptions {
  /** Time limit of the handler; 30 s by default. */
  timeoutMs?: number | undefined;
  /** Differences from the retry policy of the bus. */
  retry?: Partial<RetryPolicy> | undefined;
  /** Name of the subscription at the server. By default it is made of the pattern, so a restarted program continues its work. */
  name?: string | undefined;
}

/** Options of a bus. */
export interface EventBusOptions extends RedriveOptions {
  /** A client to use, in place of `url` and `token`. It needs the scopes `publish`, `consume` and `admin`. */
  client?: Redrive | undefined;
  /** Begins the names of the subscriptions: programs with different names get every event each. `eventbus` by default. */
  name?: string | undefined;
  /** Differences from {@link DEFAULT_RETRY_POLICY}. */
  retry?: Partial<RetryPolicy> | undefined;
  /** Handlers of one subscription that run at a time; 16 by default. */
  concurrency?: number | undefined;
  /** Time that `shutdown` waits for handlers; 30 s by default. */
  shutdownTimeoutMs?: number | undefined;
  /** Gets every error that no handler sees. */
  onError?: ((error: unknown) => void) | undefined;
}

/** The bus was shut down. */
export class EventBusShutdownError extends Error {
  override readonly name = "EventBusShutdownError";

  constructor() {
    super("the event bus was shut down: create another one");
  }
}

interface Entry {
  /** Resolves when the server has the subscription and the worker pulls its events. */
  ready: Promise<void>;
  worker?: Worker | undefined;
}

/**
 * Publishes events and runs handlers of this process. Events and attempts are in the server's database.
 *
 * ```ts
 * const bus = new EventBus({ url: "http://127.0.0.1:8080" });
 * bus.subscribe("order.*", async (event) => ship(event.payload), { retry: { maxRetries: 5 } });
 * const id = await bus.publish("order.created", { order: 7 });
 * await bus.shutdown();
 * ```
 */
export class EventBus {
  readonly #client: Redrive;
  readonly #options: EventBusOptions;
  readonly #entries = new Map<string, Entry>();
  #shutdown: Promise<void> | undefined;

  constructor(options: EventBusOptions = {}) {
    this.#client = options.client ?? new Redrive(options);
    this.#options = options;
  }

  /** Stores an event and returns its id. Handlers of every matching subscription get it. */
  async publish(type: string, payload: unknown, options: { id?: string; metadata?: Record<string, string> } = {}): Promise<string> {
    if (this.#shutdown) throw new EventBusShutdownError();
    await this.start(); // a subscription receives events that are published after its registration
    return (await this.#client.publish({ type, payload, ...options })).id;
  }

  /** Registers a handler for the types that a pattern matches; `*` matches one or more characters. Returns the subscription's id. */
  subscribe<T = unknown>(pattern: string, handler: EventHandler<T>, options: SubscribeOptions = {}): string {
    if (this.#shutdown) throw new EventBusShutdownError();
    const id = options.name ?? this.#nameFor(pattern);
    if (this.#entries.has(id)) throw new TypeError(`the subscription ${id} exists already: give another name`);
    const retry = toRetry({ ...DEFAULT_RETRY_POLICY, ...this.#options.retry, ...options.retry });
    const registered = this.#client.subscriptions.put(id, { patterns: [pattern], retry });
    const entry: Entry = {
      ready: registered.then(() => {
        const isWanted = !this.#shutdown && this.#entries.get(id) === entry;
        if (isWanted) entry.worker = this.#work(id, handler as EventHandler, options);
      }),
    };
    entry.ready.catch(() => undefined); // `start` and `publish` report it
    this.#entries.set(id, entry);
    return id;
  }

  /** Ends a subscription: its handler gets no more events, and its open deliveries are dead-lettered. */
  async unsubscribe(id: string): Promise<boolean> {
    const entry = this.#entries.get(id);
    if (!entry) return false;
    this.#entries.delete(id);
    await entry.ready;
    await entry.worker?.stop();
    await this.#client.subscriptions.remove(id);
    return true;
  }

  /** Waits until every subscription is registered and its events are handled, including events of an earlier process. */
  async start(): Promise<void> {
    if (this.#shutdown) throw new EventBusShutdownError();
    await Promise.all([...this.#entries.values()].map((entry) => entry.ready));
  }

  /** Refuses new publishes, waits for running handlers, and stops. Subscriptions stay at the server for the next start. */
  shutdown(): Promise<void> {
    this.#shutdown ??= this.#stop();
    return this.#shutdown;
  }

  async #stop(): Promise<void> {
    const stopped = [...this.#entries.values()].map(async (entry) => {
      await entry.ready;
      await entry.worker?.stop();
    });
    await Promise.allSettled(stopped);
  }

  #work(id: string, handler: EventHandler, { timeoutMs = 30_000 }: SubscribeOptions): Worker {
    const { concurrency, shutdownTimeoutMs, onError } = this.#options;
    const options = { concurrency, timeoutMs, stopTimeoutMs: shutdownTimeoutMs, onError };
    const worker = this.#client.worker(id, (event) => handler(toEvent(event)), options);
    worker.finished.catch(() => undefined); // `onError` got it
    return worker;
  }

  /** Names a subscription after its pattern; a second one of the same pattern gets a number. */
  #nameFor(pattern: string): string {
    const plain = pattern.replace(/\*/g, "any").replace(/[^A-Za-z0-9_-]+/g, "-").slice(0, 24);
    const base = `${this.#options.name ?? "eventbus"}-${plain}-${hash(pattern)}`;
    for (let number = 1; ; number += 1) {
      const name = number === 1 ? base : `${base}-${number}`;
      if (!this.#entries.has(name)) return name;
    }
  }
}

function toRetry(policy: RetryPolicy): Retry {
  return {
    max_attempts: policy.maxRetries + 1,
    base_delay_ms: policy.baseDelayMs,
    max_delay_ms: policy.maxDelayMs,
    multiplier: policy.backoffMultiplier,
  };
}

function toEvent(event: LeasedEvent): Event {
  return {
    id: event.id,
    type: event.type,
    payload: event.payload,
    createdAt: new Date(event.created_at),
    status: "processing",
    retryCount: event.attempt - 1,
    metadata: event.metadata,
  };
}

/** Hashes a text to eight hexadecimal digits (FNV-1a): patterns that look alike get different names. */
function hash(text: string): string {
  let value = 0x811c9dc5;
  for (const char of text) value = Math.imul(value ^ (char.codePointAt(0) ?? 0), 0x01000193);
  return (value >>> 0).toString(16).padStart(8, "0");
}
