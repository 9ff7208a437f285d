import { encoded, type Http } from "../http.js";
import { Paged } from "../pages.js";
import type { CreateToken, CreatedToken, Token } from "../types/admin.js";
import type { CallOptions, Page, PageQuery } from "../types/common.js";
import type { Replay } from "../types/endpoints.js";

/** Looks at replays and cancels them. `endpoints.replay` starts one. */
export class Replays {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Lists replays, oldest first. */
  list(query: PageQuery = {}, options: CallOptions = {}): Paged<Replay> {
    return paged(this.#http, "/v1/replays", query, options);
  }

  /** Returns one replay. */
  get(id: string, options: CallOptions = {}): Promise<Replay> {
    return this.#http.json({ ...options, method: "GET", path: `/v1/replays/${encoded(id)}`, repeat: "always" });
  }

  /** Cancels a replay; sent events stay sent. */
  cancel(id: string, options: CallOptions = {}): Promise<Replay> {
    return this.#http.json({ ...options, method: "POST", path: `/v1/replays/${encoded(id)}/cancel`, repeat: "always" });
  }
}

/** Creates, lists and revokes tokens. */
export class Tokens {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Creates a token. No other response shows it. */
  create(token: CreateToken, options: CallOptions = {}): Promise<CreatedToken> {
    return this.#http.json({ ...options, method: "POST", path: "/v1/tokens", body: JSON.stringify(token), repeat: "if_refused" });
  }

  /** Lists tokens, oldest first. */
  list(query: PageQuery = {}, options: CallOptions = {}): Paged<Token> {
    return paged(this.#http, "/v1/tokens", query, options);
  }

  /** Revokes a token. */
  async revoke(id: string, options: CallOptions = {}): Promise<void> {
    await this.#http.text({ ...options, method: "DELETE", path: `/v1/tokens/${encoded(id)}`, repeat: "always" });
  }
}

function paged<T>(http: Http, path: string, query: PageQuery, options: CallOptions): Paged<T> {
  const fetch = (after: string | undefined) =>
    http.json<Page<T>>({ ...options, method: "GET", path, query: { ...query, after }, repeat: "always" });
  return new Paged(fetch, query.after);
}
