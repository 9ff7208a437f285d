import assert from "node:assert/strict";
import { test } from "node:test";
import { LeaseLostError, PermanentError, RetryAfter, Snooze, type LeasedEvent, type Redrive } from "../src/index.js";
import { startServer } from "./servers.js";
import { pause, until } from "./support.js";

const TIMEOUT = { timeout: 90_000 };
const subscription = { patterns: ["job.*"], retry: { max_attempts: 3, base_delay_ms: 50, jitter: "none" } };

function publishJobs(redrive: Redrive, count: number) {
  return redrive.publishMany(Array.from({ length: count }, (_, n) => ({ type: "job.run", payload: n })));
}

test("a worker handles every event within its concurrency limit", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 300);
  let running = 0;
  let most = 0;
  const seen = new Set<number>();
  const worker = redrive.worker<number>(
    "jobs",
    async (event) => {
      running += 1;
      most = Math.max(most, running);
      await pause(5);
      seen.add(event.payload);
      running -= 1;
    },
    { concurrency: 25 },
  );
  await until(() => worker.stats.handled === 300);
  await worker.stop();
  assert.equal(seen.size, 300);
  assert.ok(most > 5 && most <= 25, `${most} at a time`);
  assert.deepEqual(worker.stats, { handled: 300, failed: 0, snoozed: 0, lost: 0, running: 0 });
  assert.equal((await redrive.stats()).open_deliveries, 0);
});

test("a failed handler is retried with its stack recorded, and then dead", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  const { id } = await (async () => {
    await redrive.subscriptions.put("jobs", subscription);
    return redrive.publish({ type: "job.run", payload: null }, { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" });
  })();
  const attempts: number[] = [];
  const traced: string[] = [];
  function chargeTheCard(event: LeasedEvent): never {
    attempts.push(event.attempt);
    throw new TypeError(`card declined \ud800 ${"x".repeat(5000)}`, { cause: new Error("the bank says no") });
  }
  const worker = redrive.worker("jobs", chargeTheCard, {
    trace: (carrier, run) => (traced.push(carrier.traceparent ?? ""), run()),
  });
  await until(async () => (await redrive.stats()).dlq === 1);
  await worker.stop();
  assert.deepEqual(attempts, [1, 2, 3]);
  assert.equal(worker.stats.failed, 3);
  assert.match(traced[0] ?? "", /^00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01$/, "the trace of the publisher goes on");
  const [letter] = (await redrive.dlq.get(id)).data;
  assert.equal(letter?.errors.length, 3);
  assert.match(letter?.errors[0] ?? "", /TypeError: card declined/);

  const short = await redrive.publish({ type: "job.run", payload: null });
  const second = redrive.worker("jobs", () => {
    throw new Error("short", { cause: "a text" });
  });
  await until(async () => (await redrive.stats()).dlq === 2);
  await second.stop();
  const [other] = (await redrive.dlq.get(short.id)).data;
  assert.match(other?.errors[0] ?? "", /Error: short\n\s+at .*server_worker[^]*Caused by: a text/);
});

test("a handler asks for a longer wait", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 1);
  const times: number[] = [];
  const worker = redrive.worker("jobs", (event) => {
    times.push(Date.now());
    if (event.attempt === 1) throw new RetryAfter(700, "the provider is busy");
  });
  await until(() => worker.stats.handled === 1);
  await worker.stop();
  assert.ok((times[1] ?? 0) - (times[0] ?? 0) >= 690, "not before the wait");
});

test("a snooze charges no attempt", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  const { id } = await redrive.publish({ type: "job.run", payload: null });
  const attempts: number[] = [];
  const errors: unknown[] = [];
  const worker = redrive.worker(
    "jobs",
    (event) => {
      if (attempts.push(event.attempt) <= 5) throw new Snooze(100, "not yet");
    },
    { onError: (error) => errors.push(error) },
  );
  await until(() => worker.stats.handled === 1 || errors.length > 0);
  await worker.stop();
  assert.deepEqual(errors, []);
  assert.deepEqual(attempts, [1, 1, 1, 1, 1, 1]);
  assert.equal(worker.stats.snoozed, 5);
  assert.equal((await redrive.events.get(id)).status, "done");
});

test("a permanent failure is dead at once", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  const { id } = await redrive.publish({ type: "job.run", payload: null });
  const errors: unknown[] = [];
  let attempts = 0;
  const worker = redrive.worker(
    "jobs",
    () => {
      attempts += 1;
      throw new PermanentError("there is no such account");
    },
    { onError: (error) => errors.push(error) },
  );
  await until(async () => (await redrive.stats()).dlq === 1 || errors.length > 0);
  await worker.stop();
  assert.deepEqual(errors, []);
  assert.equal(attempts, 1);
  const [letter] = (await redrive.dlq.get(id)).data;
  assert.equal(letter?.reason, "permanent");
  assert.match(letter?.errors[0] ?? "", /PermanentError: there is no such account/);
});

test("a lease is extended over a handler that is longer than it", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 5);
  let runs = 0;
  const worker = redrive.worker("jobs", async () => (runs += 1, pause(4000)), { leaseMs: 1500 });
  await until(() => worker.stats.handled === 5);
  await worker.stop();
  assert.equal(runs, 5, "no event was delivered again");
  assert.equal(worker.stats.lost, 0);
});

test("a late ack is refused, and the event is delivered again", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 1);
  const [late] = await redrive.subscriptions.pull("jobs", { wait_ms: 5000, lease_ms: 150 });
  assert.ok(late);
  await pause(600);
  assert.deepEqual(await redrive.subscriptions.ack("jobs", { leases: [late.lease] }), { done: 0, lost: [late.lease] });
  const [again] = await redrive.subscriptions.pull("jobs", { wait_ms: 5000 });
  assert.ok(again);
  assert.equal(again.id, late.id);
  assert.equal(again.attempt, 2);
  assert.equal((await redrive.subscriptions.extend("jobs", { leases: [again.lease], lease_ms: 5000 })).done, 1);
  assert.deepEqual(await redrive.subscriptions.ack("jobs", { leases: [again.lease] }), { done: 1, lost: [] });
});

test("the signal of a handler aborts when its lease is lost", TIMEOUT, async (t) => {
  const server = await startServer(t);
  // Extensions do not arrive in time.
  const redrive = server.client({
    fetch: async (url, init) => {
      if (url.endsWith("/extend")) await pause(900);
      return fetch(url, init);
    },
  });
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 1);
  let reason: unknown;
  const worker = redrive.worker(
    "jobs",
    async (event, { signal }) => {
      if (event.attempt === 1) await new Promise((resolve) => signal.addEventListener("abort", () => resolve((reason = signal.reason))));
    },
    { leaseMs: 300 },
  );
  await until(() => worker.stats.handled === 1);
  await worker.stop();
  assert.ok(reason instanceof LeaseLostError);
  assert.equal(worker.stats.lost, 1);
});

test("a stop waits for running handlers and their acks", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  const published = await publishJobs(redrive, 40);
  const stop = new AbortController();
  let begun = 0;
  const worker = redrive.worker("jobs", async () => (begun += 1, pause(400)), { concurrency: 10, signal: stop.signal });
  await until(() => begun === 10);
  const startedAt = Date.now();
  stop.abort();
  await worker.finished;
  assert.ok(Date.now() - startedAt < 3000, "it does not wait for the long poll");
  assert.equal(worker.stats.handled, begun);
  assert.ok(begun >= 10 && begun <= 20, `${begun}`);
  const next = redrive.worker("jobs", () => undefined);
  await until(() => next.stats.handled === published.length - begun);
  await next.stop();
});

test("SIGTERM stops a worker, and the stop has a time limit", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 1);
  let aborted = false;
  const never = ({ signal }: { signal: AbortSignal }) =>
    new Promise((resolve) => signal.addEventListener("abort", () => resolve((aborted = true))));
  const worker = redrive.worker("jobs", (_, context) => never(context), { signals: true, stopTimeoutMs: 300 });
  await until(() => worker.stats.running === 1);
  process.kill(process.pid, "SIGTERM");
  await worker.finished;
  assert.ok(aborted);
});

test("a worker without its subscription fails, or creates it", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await assert.rejects(redrive.worker("jobs", () => undefined).finished, { code: "not_found" });
  const worker = redrive.worker("jobs", () => undefined, { subscription });
  await worker.ready;
  await publishJobs(redrive, 1);
  await until(() => worker.stats.handled === 1);
  await worker.stop();
});

test("a lease is honoured by the restarted server", TIMEOUT, async (t) => {
  const server = await startServer(t);
  const redrive = server.client({ retries: { baseDelayMs: 50 } });
  await redrive.subscriptions.put("jobs", subscription);
  await publishJobs(redrive, 1);
  const attempts: number[] = [];
  const worker = redrive.worker("jobs", async (event) => {
    attempts.push(event.attempt);
    await server.kill();
    await server.restart();
  });
  await until(() => worker.stats.handled + worker.stats.lost === 1);
  await worker.stop();
  assert.deepEqual([attempts, worker.stats.handled, worker.stats.lost], [[1], 1, 0]);
});

test("no event is lost when the server is killed and restarted under workers", TIMEOUT, async (t) => {
  const server = await startServer(t, { args: ["--base-delay", "50ms", "--max-attempts", "50"] });
  const redrive = server.client({ retries: { baseDelayMs: 50, maxDelayMs: 500, maxAttempts: 12 } });
  await redrive.subscriptions.put("jobs", { patterns: ["job.*"], retry: { max_attempts: 50, base_delay_ms: 50 } });
  const seen = new Map<string, number>();
  const handler = async (event: LeasedEvent) => {
    await pause(10);
    seen.set(event.id, (seen.get(event.id) ?? 0) + 1);
  };
  const workers = [1, 2].map(() => redrive.worker("jobs", handler, { concurrency: 20, leaseMs: 2000, waitMs: 1000 }));
  const ids: string[] = [];
  const publishing = (async () => {
    for (let n = 0; n < 60; n += 1) ids.push(...(await publishJobs(redrive, 10)).map(({ id }) => id));
  })();
  for (let kill = 0; kill < 3; kill += 1) {
    await pause(300);
    await server.kill();
    await server.restart();
  }
  await publishing;
  await until(async () => (await redrive.stats()).open_deliveries === 0 && ids.every((id) => seen.has(id)));
  await Promise.all(workers.map((worker) => worker.stop()));
  assert.equal(new Set(ids).size, 600);
  assert.equal((await redrive.stats()).dlq, 0);
});
