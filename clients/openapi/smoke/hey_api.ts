// The client of @hey-api/openapi-ts: one function per operation.
import {
  createEndpoint,
  deleteEndpoint,
  getEndpoint,
  getHealth,
  getStats,
  listDeadLetters,
  listEndpointSecrets,
  listEvents,
  publishEvent,
  redriveDeadLetter,
  updateEndpoint,
} from "../generated/hey-api/index.js";
import { client } from "../generated/hey-api/client.gen.js";
import { assert, server } from "./assert.js";

client.setConfig({ baseUrl: server.url, auth: server.token });

const health = await getHealth();
assert(health.data?.status === "ok", "getHealth");

const published = await publishEvent({ body: { type: "hey.one", payload: [1, 2, 3] }, headers: { "Idempotency-Key": "hey-1" } });
assert(published.data && !published.data.duplicate, "publishEvent");
const page = await listEvents({ query: { type: "hey.one" } });
assert(page.data?.data[0]?.id === published.data.id && page.data.next === null, "listEvents");

const created = await createEndpoint({ body: { url: "https://93.184.215.14/hey", patterns: ["hey.*"], enabled: false } });
assert(created.data && created.data.secret.startsWith("whsec_"), `createEndpoint: ${created.error?.detail}`);
const path = { id: created.data.id };
const changed = await updateEndpoint({ path, body: { version: created.data.version, concurrency: 4, retry: null } });
assert(changed.data?.concurrency === 4, "updateEndpoint");
const stale = await updateEndpoint({ path, body: { version: 0, concurrency: 5 } });
assert(stale.error?.code === "conflict" && stale.response?.status === 409, "updateEndpoint of another version");
const shown = await getEndpoint({ path });
assert(shown.data && !("secret" in shown.data), "getEndpoint shows no secret");
const secrets = await listEndpointSecrets({ path });
assert(secrets.data?.data[0]?.secret === created.data.secret, "listEndpointSecrets");
const removed = await deleteEndpoint({ path });
assert(removed.response?.status === 204, "deleteEndpoint");

const dead = await listDeadLetters({ query: { reason: "permanent" } });
assert(Array.isArray(dead.data?.data), "listDeadLetters");
const redriven = await redriveDeadLetter({ path: { id: published.data.id } });
assert(redriven.error?.code === "not_dead", "redriveDeadLetter of an event that is not dead");
const stats = await getStats();
assert(typeof stats.data?.pending === "number", "getStats");
