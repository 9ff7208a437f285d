/** Tests of the worker on virtual time, against a scripted server. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { LeaseLostError, PermanentError, Redrive, RetryAfter, Snooze, type Handler, type WorkerOptions } from "../src/index.js";
import { FakeClock } from "../src/testing/index.js";
import { scripted, type Answer, type Sent } from "./support.js";

/** Starts a worker whose first pull gets one event; `answer` handles every other request. */
function workerWithOneEvent(handler: Handler, options: WorkerOptions, answer: (request: Sent) => Answer | Promise<Answer>) {
  const clock = new FakeClock();
  const { fetch, sent } = scripted((request) => {
    if (!request.url.pathname.endsWith("/pull")) return answer(request);
    const isFirst = sent.filter(({ url }) => url.pathname.endsWith("/pull")).length === 1;
    if (!isFirst) return untilAborted(request);
    const leased = { lease: "l-1", id: "e-1", type: "job.run", payload: 1, metadata: {}, attempt: 1, max_attempts: 5 };
    return { status: 200, body: { data: [leased] } };
  });
  const redrive = new Redrive({ url: "http://127.0.0.1:1", fetch, clock, retries: { maxAttempts: 1 } });
  const worker = redrive.worker("jobs", handler, options);
  const bodies = (end: string) =>
    sent.filter(({ url }) => url.pathname.endsWith(end)).map(({ body = "" }) => JSON.parse(body) as Record<string, unknown>);
  return { worker, clock, bodies };
}

function untilAborted({ signal }: Sent): Promise<never> {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

const done: Answer = { status: 200, body: { done: 1, lost: [] } };

test("a lease is extended when a third of its time has passed", { timeout: 10_000 }, async () => {
  let finish = () => {};
  const handler = () => new Promise<void>((resolve) => (finish = resolve));
  const { worker, clock, bodies } = workerWithOneEvent(handler, { leaseMs: 30_000 }, () => done);
  await clock.advance(60_000);
  assert.deepEqual(bodies("/extend"), Array(6).fill({ leases: ["l-1"], lease_ms: 30_000 }));
  finish();
  await clock.advance(10);
  assert.deepEqual(bodies("/ack"), [{ leases: ["l-1"] }]);
  await worker.stop();
  assert.deepEqual(worker.stats, { handled: 1, failed: 0, snoozed: 0, lost: 0, running: 0 });
});

test("a handler is aborted when no extension arrives before the lease ends", { timeout: 10_000 }, async () => {
  let abortedAt: number | undefined;
  let reason: unknown;
  const errors: unknown[] = [];
  const { worker, clock, bodies } = workerWithOneEvent(
    (_, { signal }) =>
      new Promise<void>((resolve) =>
        signal.addEventListener("abort", () => {
          [abortedAt, reason] = [clock.now(), signal.reason];
          resolve();
        }),
      ),
    { leaseMs: 30_000, onError: (error) => errors.push(error) },
    (request) => (request.url.pathname.endsWith("/extend") ? untilAborted(request) : { status: 200, body: { done: 0, lost: ["l-1"] } }),
  );
  const startedAt = clock.now();
  await clock.advance(40_000);
  assert.equal((abortedAt ?? 0) - startedAt, 30_000);
  assert.ok(reason instanceof LeaseLostError);
  assert.ok(bodies("/extend").length >= 2 && errors.length >= 1, "a request that hangs is abandoned for another one");
  await worker.stop();
  assert.equal(worker.stats.lost, 1);
});

test("an extension that arrives after the ack does not make the event a lost one", { timeout: 10_000 }, async () => {
  let acked: (answer: Answer) => void = () => undefined;
  const { worker, clock, bodies } = workerWithOneEvent(() => undefined, { leaseMs: 30_000 }, ({ url }) =>
    url.pathname.endsWith("/ack")
      ? new Promise((resolve) => (acked = resolve))
      : { status: 200, body: { done: 0, lost: ["l-1"] } },
  );
  await clock.advance(15_000);
  assert.equal(bodies("/extend").length, 1);
  acked(done);
  await worker.stop();
  assert.deepEqual(worker.stats, { handled: 1, failed: 0, snoozed: 0, lost: 0, running: 0 });
});

test("errors of a handler become nacks", { timeout: 10_000 }, async () => {
  const cases: [unknown, Record<string, unknown>][] = [
    [new Snooze(60_000, "the bank is closed"), { outcome: "snooze", delay_ms: 60_000, reason: "the bank is closed" }],
    [new PermanentError("no such account"), { outcome: "permanent" }],
    [new RetryAfter(5000, "busy"), { delay_ms: 5000 }],
    [new Error("down"), {}],
    ["a text", { reason: "a text" }],
    [Object.assign(new Error("429"), { retryAfterMs: 1e12 }), { delay_ms: 86_400_000 }],
  ];
  for (const [error, expected] of cases) {
    const fail = () => {
      throw error;
    };
    const { worker, clock, bodies } = workerWithOneEvent(fail, {}, () => done);
    await clock.advance(10);
    await worker.stop();
    const { reason, ...nack } = bodies("/nack")[0] ?? {};
    assert.deepEqual({ leases: ["l-1"], reason, ...expected }, { reason, ...nack });
    if (error instanceof Error && !(error instanceof Snooze)) assert.match(String(reason), new RegExp(`${error.name}: .*\n +at `));
  }
});

test("an error of a callback does not keep the event from being settled", { timeout: 10_000 }, async () => {
  const errors: unknown[] = [];
  const fail = () => {
    throw new Error("down");
  };
  const options = { onFailure: fail, onError: (error: unknown) => errors.push(error) };
  const { worker, clock, bodies } = workerWithOneEvent(fail, options, () => done);
  await clock.advance(10);
  await worker.stop();
  assert.match(String(bodies("/nack")[0]?.["reason"]), /Error: down/);
  assert.equal(errors.length, 1);
});

test("a stop ends although the server is away", { timeout: 10_000 }, async () => {
  const { worker, clock } = workerWithOneEvent(() => undefined, { leaseMs: 600_000, stopTimeoutMs: 10_000 }, () => "network_error");
  await clock.advance(1000);
  const startedAt = clock.now();
  let stoppedAt: number | undefined;
  void worker.stop().then(() => (stoppedAt = clock.now()));
  await clock.advance(60_000);
  const stopMs = (stoppedAt ?? 0) - startedAt;
  assert.ok(stopMs >= 12_000 && stopMs <= 12_500, `${stopMs} ms`);
});

test("acks are sent again while the server is away", { timeout: 10_000 }, async () => {
  let requests = 0;
  const { worker, clock } = workerWithOneEvent(() => undefined, {}, () => ((requests += 1) < 4 ? "network_error" : done));
  await clock.advance(5000);
  await worker.stop();
  assert.equal(requests, 4);
  assert.equal(worker.stats.handled, 1);
});
