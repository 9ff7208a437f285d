import { RedriveError } from "./errors.js";
import type { Page } from "./types/common.js";

/** Fetches the page after a cursor. */
export type FetchPage<T> = (after: string | undefined) => Promise<Page<T>>;

/**
 * A list of the server. `await` returns its first page; `for await` iterates over all entries and fetches pages as it goes.
 *
 * ```ts
 * const page = await redrive.events.list({ limit: 10 });
 * for await (const event of redrive.events.list({ status: "dlq" })) console.log(event.id);
 * ```
 */
export class Paged<T> implements PromiseLike<Page<T>>, AsyncIterable<T> {
  readonly #fetch: FetchPage<T>;
  readonly #after: string | undefined;

  constructor(fetch: FetchPage<T>, after?: string | undefined) {
    this.#fetch = fetch;
    this.#after = after;
  }

  then<A = Page<T>, B = never>(
    onPage?: ((page: Page<T>) => A | PromiseLike<A>) | null,
    onError?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.#fetch(this.#after).then(onPage, onError);
  }

  /** Iterates over the pages, from the first one on. */
  async *pages(): AsyncGenerator<Page<T>, void, undefined> {
    for (let after = this.#after; ; ) {
      const page = await this.#fetch(after);
      yield page;
      if (page.next === null || page.next === undefined) return;
      if (page.next === after) {
        const detail = `the server returned the cursor ${JSON.stringify(page.next)} twice: the list would not end`;
        throw new RedriveError({ code: "unexpected_response", detail });
      }
      after = page.next;
    }
  }

  /** Iterates over the entries of all pages. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) yield* page.data;
  }

  /** Collects at most `limit` entries. */
  async take(limit: number): Promise<T[]> {
    const entries: T[] = [];
    if (limit < 1) return entries;
    for await (const entry of this) if (entries.push(entry) >= limit) break;
    return entries;
  }
}
