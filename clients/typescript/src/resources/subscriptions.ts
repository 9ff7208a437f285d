import { encoded, readJson, type Http } from "../http.js";
import { rememberPayloads } from "../json.js";
import { Paged } from "../pages.js";
import type { CallOptions, List, Page, PageQuery } from "../types/common.js";
import type { Ack, Extend, LeaseResults, LeasedEvent, Nack, Pull, PutSubscription, Subscription } from "../types/subscriptions.js";

/** Time limit of a pull beyond its own wait. */
const PULL_GRACE_MS = 15_000;

/** Manages pull subscriptions, pulls events and settles them. `worker` does the latter for you. */
export class Subscriptions {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Creates or changes a subscription. A new one receives events that are published after this call. */
  put(name: string, subscription: PutSubscription, options: CallOptions = {}): Promise<Subscription> {
    return this.#http.json({ ...options, method: "PUT", path: path(name), body: JSON.stringify(subscription), repeat: "always" });
  }

  /** Lists subscriptions in the order of their names. */
  list(query: PageQuery = {}, options: CallOptions = {}): Paged<Subscription> {
    return new Paged(
      (after) =>
        this.#http.json<Page<Subscription>>({
          ...options,
          method: "GET",
          path: "/v1/subscriptions",
          query: { ...query, after },
          repeat: "always",
        }),
      query.after,
    );
  }

  /** Returns one subscription. */
  get(name: string, options: CallOptions = {}): Promise<Subscription> {
    return this.#http.json({ ...options, method: "GET", path: path(name), repeat: "always" });
  }

  /** Removes a subscription; its open deliveries are dead-lettered. */
  async remove(name: string, options: CallOptions = {}): Promise<void> {
    await this.#http.text({ ...options, method: "DELETE", path: path(name), repeat: "always" });
  }

  /** Pulls events, each under a lease. An event whose lease ends without ack or nack is delivered again. */
  async pull<T = unknown>(name: string, how: Pull = {}, options: CallOptions = {}): Promise<LeasedEvent<T>[]> {
    const text = await this.#http.text({
      ...options,
      method: "POST",
      path: path(name, "/pull"),
      body: JSON.stringify(how),
      repeat: "if_refused", // after a lost response the events are leased, and a repetition would wait for others
      timeoutMs: (how.wait_ms ?? 0) + PULL_GRACE_MS,
    });
    const events = readJson<List<LeasedEvent<T>>>(text);
    rememberPayloads(text, events);
    return events.data;
  }

  /** Settles events as handled. A repeated ack whose first response was lost names its leases as lost. */
  ack(name: string, ack: Ack, options: CallOptions = {}): Promise<LeaseResults> {
    return this.#settle(path(name, "/ack"), ack, options);
  }

  /** Settles events as failed, snoozed or permanently failed. */
  nack(name: string, nack: Nack, options: CallOptions = {}): Promise<LeaseResults> {
    return this.#settle(path(name, "/nack"), nack, options);
  }

  /** Extends leases. */
  extend(name: string, extend: Extend, options: CallOptions = {}): Promise<LeaseResults> {
    return this.#settle(path(name, "/extend"), extend, options);
  }

  #settle(to: string, body: object, options: CallOptions): Promise<LeaseResults> {
    return this.#http.json({ ...options, method: "POST", path: to, body: JSON.stringify(body), repeat: "always" });
  }
}

function path(name: string, rest = ""): string {
  return `/v1/subscriptions/${encoded(name)}${rest}`;
}
