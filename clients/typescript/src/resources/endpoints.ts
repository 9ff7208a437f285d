import { encoded, type Http, type HttpRequest } from "../http.js";
import { Paged } from "../pages.js";
import type { CallOptions, List, Page, PageQuery } from "../types/common.js";
import type {
  AttemptRecord,
  BeginReplay,
  CreateEndpoint,
  CreatedEndpoint,
  Endpoint,
  EndpointAttempt,
  EndpointSecret,
  Replay,
  ReplayCount,
  RotateSecret,
  UpdateEndpoint,
} from "../types/endpoints.js";

/** Manages the receivers of webhooks. */
export class Endpoints {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Creates an endpoint; the response has its secret. */
  create(endpoint: CreateEndpoint, options: CallOptions = {}): Promise<CreatedEndpoint> {
    return this.#post("/v1/endpoints", endpoint, options);
  }

  /** Lists endpoints, oldest first. */
  list(query: PageQuery = {}, options: CallOptions = {}): Paged<Endpoint> {
    return this.#list("/v1/endpoints", query, options);
  }

  /** Returns one endpoint. */
  get(id: string, options: CallOptions = {}): Promise<Endpoint> {
    return this.#http.json({ ...options, method: "GET", path: path(id), repeat: "always" });
  }

  /** Changes an endpoint. */
  update(id: string, changes: UpdateEndpoint, options: CallOptions = {}): Promise<Endpoint> {
    // With a version, a repeated change would be refused as a conflict with itself.
    const repeat = changes.version == null ? "always" : "if_refused";
    return this.#http.json({ ...options, method: "PATCH", path: path(id), body: JSON.stringify(changes), repeat });
  }

  /** Removes an endpoint; its open deliveries are dead-lettered. */
  async remove(id: string, options: CallOptions = {}): Promise<void> {
    await this.#http.text({ ...options, method: "DELETE", path: path(id), repeat: "always" });
  }

  /** Sends a message of the type `redrive.test` now, and returns the response. */
  test(id: string, options: CallOptions = {}): Promise<AttemptRecord> {
    return this.#post(path(id, "/test"), undefined, options);
  }

  /** Lists attempts, newest first. */
  attempts(id: string, query: { failed?: boolean } & PageQuery = {}, options: CallOptions = {}): Paged<EndpointAttempt> {
    return this.#list(path(id, "/attempts"), query, options);
  }

  /** Returns the secrets, the newest first. */
  secrets(id: string, options: CallOptions = {}): Promise<List<EndpointSecret>> {
    return this.#http.json({ ...options, method: "GET", path: path(id, "/secret"), repeat: "always" });
  }

  /** Rotates the secret; the previous one signs as well for a while. */
  rotateSecret(id: string, how: RotateSecret = {}, options: CallOptions = {}): Promise<List<EndpointSecret>> {
    return this.#post(path(id, "/secret/rotate"), how, options);
  }

  /** Starts a replay of the endpoint's dead letters. */
  replay(id: string, how: BeginReplay = {}, options: CallOptions = {}): Promise<Replay> {
    return this.#post(path(id, "/replays"), { ...how, dry_run: false }, options);
  }

  /** Counts the dead letters that a replay would send. */
  countReplay(id: string, how: BeginReplay = {}, options: CallOptions = {}): Promise<ReplayCount> {
    return this.#post(path(id, "/replays"), { ...how, dry_run: true }, options);
  }

  #post<R>(to: string, body: object | undefined, options: CallOptions): Promise<R> {
    const request: HttpRequest = { ...options, method: "POST", path: to, repeat: "if_refused" };
    return this.#http.json(body === undefined ? request : { ...request, body: JSON.stringify(body) });
  }

  #list<T>(from: string, query: PageQuery, options: CallOptions): Paged<T> {
    const fetch = (after: string | undefined) =>
      this.#http.json<Page<T>>({ ...options, method: "GET", path: from, query: { ...query, after }, repeat: "always" });
    return new Paged(fetch, query.after);
  }
}

function path(id: string, rest = ""): string {
  return `/v1/endpoints/${encoded(id)}${rest}`;
}
