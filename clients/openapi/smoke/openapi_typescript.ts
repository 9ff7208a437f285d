// The types of openapi-typescript, with its client openapi-fetch.
import createClient from "openapi-fetch";
import type { components, paths } from "../generated/openapi-typescript/schema.js";
import { assert, server } from "./assert.js";

const client = createClient<paths>({ baseUrl: server.url, headers: { authorization: `Bearer ${server.token}` } });

const subscription = await client.PUT("/v1/subscriptions/{name}", {
  params: { path: { name: "openapi-typescript" } },
  body: { patterns: ["typescript.*"] },
});
assert(subscription.data?.name === "openapi-typescript", "putSubscription");

const event: components["schemas"]["PublishEvent"] = { type: "typescript.one", payload: { order: 7 }, metadata: { tenant: "acme" } };
const key = { header: { "Idempotency-Key": "openapi-typescript-1" } };
const first = await client.POST("/v1/events", { params: key, body: event });
const again = await client.POST("/v1/events", { params: key, body: event });
assert(first.data && first.data.id === again.data?.id, "publishEvent with a key stores one event");
assert(again.response.headers.get("idempotency-replayed") === "true", "the repeated response is a recorded one");

const batch = await client.POST("/v1/events/batch", { body: [event, { type: "typescript.two", payload: null }] });
assert(batch.data?.data.length === 2, "publishEvents");

let after: string | undefined;
const types: string[] = [];
do {
  const page = await client.GET("/v1/events", { params: { query: { limit: 1, after } } });
  assert(page.data, "listEvents");
  types.push(...page.data.data.map((summary) => summary.type));
  after = page.data.next ?? undefined;
} while (after);
assert(types.filter((type) => type.startsWith("typescript.")).length === 3, "pages of listEvents");

// @ts-expect-error: an enumeration of a request is closed.
const refused = await client.GET("/v1/events", { params: { query: { status: "unheard_of" } } });
assert(refused.error?.code === "invalid_request", "a problem has a code");

const missing = await client.GET("/v1/events/{id}", { params: { path: { id: "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19" } } });
assert(missing.response.status === 404 && missing.error?.code === "not_found", "getEvent of an unknown event");
const found = await client.GET("/v1/events/{id}", { params: { path: { id: first.data.id } } });
assert(found.data?.payload && found.data.metadata["tenant"] === "acme", "getEvent");

const pulled = await client.POST("/v1/subscriptions/{name}/pull", {
  params: { path: { name: "openapi-typescript" } },
  body: { max: 10, wait_ms: 5000 },
});
const leases = pulled.data?.data.map((leased) => leased.lease) ?? [];
assert(leases.length > 0, "pullEvents");
const acked = await client.POST("/v1/subscriptions/{name}/ack", {
  params: { path: { name: "openapi-typescript" } },
  body: { leases },
});
assert(acked.data?.lost.length === 0, "ackEvents");

const metrics = await client.GET("/metrics", { parseAs: "text" });
assert(metrics.data?.includes("redrive_events_published_total"), "getMetrics");
