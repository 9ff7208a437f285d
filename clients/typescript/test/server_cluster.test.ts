/** Three servers on one PostgreSQL database: leases are honoured by each of them, behind any load balancer. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Event, LeasedEvent, Redrive } from "../src/index.js";
import { needsPostgres as skip, startCluster, type Cluster } from "./servers.js";
import { pause, until } from "./support.js";

const OPTIONS = { timeout: 90_000, skip };
const subscription = { patterns: ["job.*"], retry: { max_attempts: 50, base_delay_ms: 50, jitter: "none" } };

function publishJobs(redrive: Redrive, count: number) {
  return redrive.publishMany(Array.from({ length: count }, (_, n) => ({ type: "job.run", payload: n })));
}

/** Clients of each server, without the proxy. */
function directClients({ servers }: Cluster) {
  return servers.map((server) => server.client()) as [Redrive, Redrive, Redrive];
}

test("no event is lost when a server behind the load balancer is killed and restarted", OPTIONS, async (t) => {
  const cluster = await startCluster(t, { args: ["--base-delay", "50ms", "--max-attempts", "50"] });
  const redrive = cluster.client({ retries: { baseDelayMs: 50, maxDelayMs: 500, maxAttempts: 12 } });
  await redrive.subscriptions.put("jobs", subscription);
  const ids = (await publishJobs(redrive, 200)).map(({ id }) => id);
  const seen = new Map<string, number>();
  const worker = redrive.worker(
    "jobs",
    async (event) => {
      await pause(50);
      seen.set(event.id, (seen.get(event.id) ?? 0) + 1);
    },
    { concurrency: 8, leaseMs: 2000, waitMs: 1000 },
  );
  await until(() => seen.size >= 40);
  await cluster.kill();
  await until(() => seen.size >= 100);
  await cluster.restart();
  await until(async () => (await redrive.stats()).done === 200);
  await worker.stop();
  assert.deepEqual([...seen.keys()].sort(), ids.sort());
  const { dlq, open_deliveries } = await redrive.stats();
  assert.deepEqual([dlq, open_deliveries, worker.stats.failed], [0, 0, 0]);
  assert.ok(cluster.proxy.badGateways > 0, "the client had to repeat requests");
});

test("an event is pulled at one server, extended at another, and acked at the third", OPTIONS, async (t) => {
  const [first, second, third] = directClients(await startCluster(t));
  await first.subscriptions.put("jobs", subscription);
  await publishJobs(second, 1);
  const [leased] = await first.subscriptions.pull("jobs", { wait_ms: 10_000, lease_ms: 1500 });
  assert.ok(leased);
  const leases = [leased.lease];
  assert.deepEqual(await second.subscriptions.extend("jobs", { leases, lease_ms: 20_000 }), { done: 1, lost: [] });
  await pause(2000); // longer than the first lease
  assert.deepEqual(await second.subscriptions.pull("jobs", { wait_ms: 0 }), []);
  assert.deepEqual(await third.subscriptions.ack("jobs", { leases }), { done: 1, lost: [] });
  for (const redrive of [first, second, third]) {
    const found: Event = await redrive.events.get(leased.id);
    assert.deepEqual([found.status, found.retry_count], ["done", 0]);
  }
});

test("a lease is honoured after the server that granted it was killed", OPTIONS, async (t) => {
  const cluster = await startCluster(t);
  const [first, second, third] = directClients(cluster);
  await first.subscriptions.put("jobs", subscription);
  await publishJobs(first, 2);
  const leased: LeasedEvent[] = [];
  while (leased.length < 2) leased.push(...(await first.subscriptions.pull("jobs", { max: 2, wait_ms: 10_000 })));
  await cluster.servers[0].kill();
  const [one, other] = leased.map(({ lease }) => lease) as [string, string];
  assert.deepEqual(await second.subscriptions.ack("jobs", { leases: [one] }), { done: 1, lost: [] });
  await cluster.servers[0].restart();
  assert.deepEqual(await first.subscriptions.extend("jobs", { leases: [other], lease_ms: 20_000 }), { done: 1, lost: [] });
  assert.deepEqual(await third.subscriptions.nack("jobs", { leases: [other], outcome: "permanent" }), { done: 1, lost: [] });
  await until(async () => {
    const { done, dlq } = await second.stats();
    return done === 1 && dlq === 1;
  });
});

test("every server refuses the settlement of a lease that has ended", OPTIONS, async (t) => {
  const clients = directClients(await startCluster(t));
  const [first, second] = clients;
  await first.subscriptions.put("jobs", subscription);
  await publishJobs(first, 1);
  const [late] = await first.subscriptions.pull("jobs", { wait_ms: 10_000, lease_ms: 150 });
  assert.ok(late);
  await pause(600);
  const refuseAll = async () => {
    const leases = [late.lease];
    for (const { subscriptions } of clients) {
      assert.deepEqual(await subscriptions.ack("jobs", { leases }), { done: 0, lost: leases });
      assert.deepEqual(await subscriptions.nack("jobs", { leases }), { done: 0, lost: leases });
      assert.deepEqual(await subscriptions.extend("jobs", { leases, lease_ms: 9000 }), { done: 0, lost: leases });
    }
  };
  await refuseAll();
  const [again] = await second.subscriptions.pull("jobs", { wait_ms: 10_000 });
  assert.ok(again);
  assert.deepEqual([again.id, again.attempt], [late.id, 2]);
  await refuseAll(); // nor does the new lease revive the old one
  assert.deepEqual(await first.subscriptions.ack("jobs", { leases: [again.lease] }), { done: 1, lost: [] });
  assert.equal((await second.events.get(late.id)).status, "done");
});

test("two leases of one delivery in one request are told apart", OPTIONS, async (t) => {
  const redrive = (await startCluster(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 1);
  const pull = async (lease_ms: number): Promise<LeasedEvent> => {
    const [leased] = await redrive.subscriptions.pull("jobs", { wait_ms: 500, lease_ms });
    return leased ?? pull(lease_ms);
  };
  const late = await pull(150);
  await pause(600);
  const again = await pull(20_000);
  assert.equal(again.id, late.id);
  assert.deepEqual(await redrive.subscriptions.ack("jobs", { leases: [late.lease, again.lease] }), { done: 1, lost: [late.lease] });
});
