import { RedriveError } from "../errors.js";
import { encoded, readJson, type Http } from "../http.js";
import { eventToJson, rememberPayloads } from "../json.js";
import { Paged } from "../pages.js";
import { readMessages } from "../stream.js";
import type { CallOptions, List, Page, PageQuery } from "../types/common.js";
import type {
  Event,
  EventFilter,
  EventReplayed,
  EventSummary,
  PublishEvent,
  PublishOptions,
  PublishedEvent,
  StreamMessage,
} from "../types/events.js";

/** Largest number of events of one batch. */
const MAX_BATCH_EVENTS = 10_000;

/** Largest body of one batch, below the server's limit of 16 MiB. */
const MAX_BATCH_CHARS = 4 << 20;

/** Publishes events and looks them up. */
export class Events {
  readonly #http: Http;
  readonly #nextKey: () => Promise<string>;
  readonly #traceparent: () => string | undefined;

  constructor(http: Http, nextKey: () => Promise<string>, traceparent: () => string | undefined) {
    this.#http = http;
    this.#nextKey = nextKey;
    this.#traceparent = traceparent;
  }

  /** Publishes an event; returns when it is on stable storage. Repeated requests store it once. */
  async publish<T>(event: PublishEvent<T>, options: PublishOptions = {}): Promise<PublishedEvent> {
    return this.#post("/v1/events", eventToJson(event), options.idempotencyKey ?? (await this.#nextKey()), options);
  }

  /**
   * Publishes many events, in the order of the array. A batch is stored as a whole or not at all; more than 10,000 events, or more
   * than 4 MiB of text, become several batches. After an error, the same call with the same key stores the rest.
   */
  async publishMany<T>(events: readonly PublishEvent<T>[], options: PublishOptions = {}): Promise<PublishedEvent[]> {
    const batches = split(events.map((event) => eventToJson(event)));
    const key = options.idempotencyKey ?? (await this.#nextKey());
    const published: PublishedEvent[] = [];
    for (const [index, batch] of batches.entries()) {
      const batchKey = batches.length === 1 ? key : `${key}-${index}`;
      const body = `[${batch.join(",")}]`;
      const list = await this.#post<List<PublishedEvent>>("/v1/events/batch", body, batchKey, options).catch((error: unknown) => {
        if (error instanceof RedriveError) error.idempotencyKey = key;
        throw error;
      });
      published.push(...list.data);
    }
    return published;
  }

  /** Lists events, newest first. */
  list(query: EventFilter & PageQuery = {}, options: CallOptions = {}): Paged<EventSummary> {
    return new Paged(
      (after) =>
        this.#http.json<Page<EventSummary>>({ ...options, method: "GET", path: "/v1/events", query: { ...query, after }, repeat: "always" }),
      query.after,
    );
  }

  /** Returns one event with payload, deliveries and attempts. */
  async get<T = unknown>(id: string, options: CallOptions = {}): Promise<Event<T>> {
    const text = await this.#http.text({ ...options, method: "GET", path: `/v1/events/${encoded(id)}`, repeat: "always" });
    const event = readJson<Event<T>>(text);
    rememberPayloads(text, event);
    return event;
  }

  /** Sends an event to one endpoint again, or for the first time. */
  replay(id: string, endpoint: string, options: CallOptions = {}): Promise<EventReplayed> {
    const body = JSON.stringify({ endpoint });
    return this.#http.json({ ...options, method: "POST", path: `/v1/events/${encoded(id)}/replay`, body, repeat: "if_refused" });
  }

  /**
   * Follows changes of events live: published, done, dead. Ends with the server or with `signal`; it does not reconnect.
   *
   * `pattern` selects types; `*` matches one or more characters.
   */
  async *watch(pattern = "*", options: CallOptions = {}): AsyncGenerator<StreamMessage, void, undefined> {
    const headers = { accept: "text/event-stream" };
    const query = { type: pattern };
    const response = await this.#http.open({ ...options, method: "GET", path: "/v1/stream", query, headers, repeat: "always" });
    yield* readMessages(response.body);
  }

  #post<R>(path: string, body: string, key: string, options: PublishOptions): Promise<R> {
    const traceparent = options.traceparent ?? this.#traceparent();
    const headers = { "idempotency-key": key, ...(traceparent === undefined ? {} : { traceparent }) };
    return this.#http.json<R>({ method: "POST", path, body, headers, repeat: "always", signal: options.signal });
  }
}

/** Splits events into batches that the server accepts. */
function split(events: string[]): string[][] {
  const batches: string[][] = [];
  let chars = Infinity;
  for (const event of events) {
    let batch = batches.at(-1);
    if (!batch || batch.length === MAX_BATCH_EVENTS || chars + event.length > MAX_BATCH_CHARS) {
      batch = [];
      batches.push(batch);
      chars = 0;
    }
    batch.push(event);
    chars += event.length + 1;
  }
  return batches;
}
