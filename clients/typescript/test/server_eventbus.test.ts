import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULT_RETRY_POLICY, EventBus, EventBusShutdownError, InvalidPayloadError, type RetryPolicy } from "../src/eventbus.js";
import { startServer } from "./servers.js";
import { until } from "./support.js";

const TIMEOUT = { timeout: 30_000 };

test("the snippets of the specification run", TIMEOUT, async (t) => {
  const { url } = await startServer(t);
  // Types as in the specification: `Event`, `EventHandler`, `RetryPolicy` and `SubscribeOptions` fit them.
  interface SpecifiedEvent {
    id: string;
    type: string;
    payload: unknown;
    createdAt: Date;
    status: "pending" | "processing" | "done" | "dlq";
    retryCount: number;
    lastError?: string;
    metadata?: Record<string, string>;
  }
  type SpecifiedHandler = (event: SpecifiedEvent) => Promise<void>;

  const bus = new EventBus({ url, shutdownTimeoutMs: 5000 });
  const handled: SpecifiedEvent[] = [];
  const handler: SpecifiedHandler = async (event) => void handled.push(event);
  const subscriptionId: string = bus.subscribe('order.*', handler, {
    retry: { maxRetries: 5, baseDelayMs: 500 }
  });
  const eventId: string = await bus.publish("order.created", { order: 7 });
  await bus.publish("user.created", {});
  await until(() => handled.length === 1);
  const [event] = handled;
  assert.deepEqual([event?.id, event?.type, event?.payload, event?.retryCount], [eventId, "order.created", { order: 7 }, 0]);
  assert.ok(event?.createdAt instanceof Date);
  const policy: RetryPolicy = DEFAULT_RETRY_POLICY;
  assert.deepEqual(policy, { maxRetries: 3, baseDelayMs: 1000, maxDelayMs: 30000, backoffMultiplier: 2 });

  bus.subscribe('user.created', async () => undefined, { timeoutMs: 5000 });
  await bus.unsubscribe(subscriptionId);
  await bus.shutdown();
  await assert.rejects(bus.publish("order.created", {}), EventBusShutdownError);
  assert.throws(() => bus.subscribe("a", handler), EventBusShutdownError);
});

test("handlers are retried by their policy, merged with the defaults, and then dead", TIMEOUT, async (t) => {
  const server = await startServer(t);
  const [bus, redrive] = [new EventBus({ url: server.url }), server.client()];
  const counts: number[] = [];
  const id = bus.subscribe(
    "order.*",
    async (event) => {
      counts.push(event.retryCount);
      throw new Error("no");
    },
    { retry: { maxRetries: 2, baseDelayMs: 20 } },
  );
  await bus.start();
  assert.deepEqual((await redrive.subscriptions.get(id)).retry, {
    max_attempts: 3, base_delay_ms: 20, max_delay_ms: 30000, multiplier: 2,
  });
  await bus.publish("order.created", null);
  await until(async () => (await redrive.stats()).dlq === 1);
  assert.deepEqual(counts, [0, 1, 2]);
  await bus.shutdown();
});

test("a handler that takes too long fails", TIMEOUT, async (t) => {
  const server = await startServer(t);
  const [bus, redrive] = [new EventBus({ url: server.url, retry: { maxRetries: 0 } }), server.client()];
  bus.subscribe("slow", () => new Promise<void>((resolve) => setTimeout(resolve, 1000)), { timeoutMs: 50 });
  const id = await bus.publish("slow", 1);
  await until(async () => (await redrive.stats()).dlq === 1);
  assert.match((await redrive.dlq.get(id)).data[0]?.errors[0] ?? "", /HandlerTimeoutError: the handler took longer than 50 ms/);
  await bus.shutdown();
});

test("a restarted program continues, and an ended subscription gets nothing", TIMEOUT, async (t) => {
  const server = await startServer(t);
  const { url } = server;
  const first = new EventBus({ url });
  const name = first.subscribe("order.*", async () => undefined);
  await first.start();
  await first.shutdown();
  await server.client().publish({ type: "order.created", payload: 1 }); // while no process handles it
  const second = new EventBus({ url });
  const seen: unknown[] = [];
  const id = second.subscribe("order.*", async (event) => void seen.push(event.payload));
  assert.equal(id, name);
  await until(() => seen.length === 1);
  const other = second.subscribe("order.*", async () => undefined);
  assert.notEqual(other, id);
  assert.equal(await second.unsubscribe(id), true);
  assert.equal(await second.unsubscribe(id), false);
  await second.publish("order.created", 2);
  await assert.rejects(second.publish("order.created", undefined), InvalidPayloadError);
  await second.shutdown();
  assert.deepEqual(seen, [1]);
});
