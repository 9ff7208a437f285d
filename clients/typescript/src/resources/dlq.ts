import { encoded, readJson, type Http } from "../http.js";
import { payloadToJson, rememberPayloads } from "../json.js";
import { Paged } from "../pages.js";
import type { CallOptions, List, Page, PageQuery } from "../types/common.js";
import type {
  DeadGroups,
  DeadLetter,
  DeadSummary,
  DlqFilter,
  Purged,
  RetriedDead,
  RetryDeadMany,
  RetryReport,
} from "../types/dlq.js";

/** Looks at dead letters, redrives and deletes them. */
export class Dlq {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Lists dead letters, newest first. */
  list(query: DlqFilter & PageQuery = {}, options: CallOptions = {}): Paged<DeadSummary> {
    return new Paged(
      (after) =>
        this.#http.json<Page<DeadSummary>>({ ...options, method: "GET", path: "/v1/dlq", query: { ...query, after }, repeat: "always" }),
      query.after,
    );
  }

  /** Returns the dead letters of one event: one, or one for each subscription that is tracked on its own. */
  async get<T = unknown>(id: string, options: CallOptions = {}): Promise<List<DeadLetter<T>>> {
    const text = await this.#http.text({ ...options, method: "GET", path: `/v1/dlq/${encoded(id)}`, repeat: "always" });
    const letters = readJson<List<DeadLetter<T>>>(text);
    rememberPayloads(text, letters);
    return letters;
  }

  /** Groups dead letters by error fingerprint, the largest group first. */
  groups(filter: DlqFilter = {}, options: CallOptions = {}): Promise<DeadGroups> {
    return this.#http.json({ ...options, method: "GET", path: "/v1/dlq/groups", query: filter, repeat: "always" });
  }

  /** Redrives one event, with another payload if one is given. */
  retry(id: string, edit: { payload?: unknown } = {}, options: CallOptions = {}): Promise<RetriedDead> {
    const body = "payload" in edit ? `{"payload":${payloadToJson(edit.payload)}}` : "{}";
    return this.#http.json({ ...options, method: "POST", path: `/v1/dlq/${encoded(id)}/retry`, body, repeat: "if_refused" });
  }

  /** Redrives the events that a filter matches, at most `limit` with one request; continue with `after`. */
  retryMany(how: RetryDeadMany, options: CallOptions = {}): Promise<RetryReport> {
    return this.#http.json({ ...options, method: "POST", path: "/v1/dlq/retry", body: JSON.stringify(how), repeat: "if_refused" });
  }

  /** Deletes dead letters of events that were published at least this long ago, such as `7d` or a number of milliseconds. */
  purge(olderThan: string | number, options: CallOptions = {}): Promise<Purged> {
    const query = { older_than: typeof olderThan === "number" ? `${Math.ceil(olderThan)}ms` : olderThan };
    return this.#http.json({ ...options, method: "DELETE", path: "/v1/dlq", query, repeat: "always" });
  }
}
