/** Handlers of a minute under leases of a few seconds. `scripts/test.mjs` runs this file beside the others. */
import assert from "node:assert/strict";
import { describe, test, type TestContext } from "node:test";
import type { Fetch } from "../src/http.js";
import { needsPostgres, startCluster, startSqlite, type TestServer } from "./servers.js";
import { pause, until } from "./support.js";

const HANDLER_MS = 60_000;
const LEASE_MS = 6000;

async function extendsALongHandler(t: TestContext, server: TestServer): Promise<void> {
  const sent = { ack: 0, extend: 0 };
  const counted: Fetch = (url, init) => {
    if (url.endsWith("/ack")) sent.ack += 1;
    if (url.endsWith("/extend")) sent.extend += 1;
    return fetch(url, init);
  };
  const redrive = server.client({ fetch: counted, retries: { baseDelayMs: 50, maxDelayMs: 500 } });
  await redrive.subscriptions.put("jobs", { patterns: ["job.*"], retry: { max_attempts: 5, base_delay_ms: 50 } });
  const { id } = await redrive.publish({ type: "job.run", payload: null });
  const attempts: number[] = [];
  const worker = redrive.worker(
    "jobs",
    async (event) => {
      attempts.push(event.attempt);
      await pause(HANDLER_MS);
    },
    { leaseMs: LEASE_MS },
  );
  t.after(() => worker.stop());
  await pause(HANDLER_MS / 3);
  await server.kill();
  await server.restart();
  await until(() => worker.stats.handled + worker.stats.lost > 0, HANDLER_MS);
  assert.deepEqual(attempts, [1], "no other delivery");
  assert.deepEqual(worker.stats, { handled: 1, failed: 0, snoozed: 0, lost: 0, running: 0 });
  assert.equal(sent.ack, 1);
  assert.ok(sent.extend >= HANDLER_MS / LEASE_MS, `${sent.extend} extensions`);
  const { status, retry_count } = await redrive.events.get(id);
  assert.deepEqual([status, retry_count], ["done", 0]);
}

describe("a lease is extended over a handler of a minute, and over a crash of a server", { concurrency: true }, () => {
  test("on SQLite", { timeout: 2 * HANDLER_MS }, async (t) => extendsALongHandler(t, await startSqlite(t)));
  test("on PostgreSQL", { timeout: 2 * HANDLER_MS, skip: needsPostgres }, async (t) => extendsALongHandler(t, await startCluster(t)));
});
