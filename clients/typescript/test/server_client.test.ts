import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { inspect } from "node:util";
import { RawJson, Redrive, RedriveError, Webhook, payloadText, type WebhookMessage } from "../src/index.js";
import { startServer, startSqlite } from "./servers.js";
import { until } from "./support.js";

const TIMEOUT = { timeout: 90_000 };

test("an event is published, found, and a repetition is the same event", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  const { id, duplicate } = await redrive.publish({ type: "order.created", payload: { order: 7 }, metadata: { tenant: "t-1" } });
  assert.equal(duplicate, false);
  const event = await redrive.events.get<{ order: number }>(id);
  assert.deepEqual(event.payload, { order: 7 });
  assert.deepEqual([event.type, event.metadata], ["order.created", { tenant: "t-1" }]);

  const again = { type: "order.paid", payload: { order: 8 } };
  const first = await redrive.publish(again, { idempotencyKey: "order-8" });
  assert.deepEqual(await redrive.publish(again, { idempotencyKey: "order-8" }), first);
  await assert.rejects(redrive.publish({ ...again, payload: 9 }, { idempotencyKey: "order-8" }), { code: "other_payload", status: 422 });

  const own = { ...again, id: randomUUID() };
  assert.deepEqual(await redrive.publish(own), { id: own.id, duplicate: false });
  assert.deepEqual(await redrive.publish(own), { id: own.id, duplicate: true });
  await assert.rejects(redrive.publish({ ...own, type: "order.other" }), (error) => {
    assert.ok(error instanceof RedriveError);
    assert.deepEqual([error.code, error.status, error.requests], ["id_taken", 409, 1]);
    return true;
  });
  await assert.rejects(redrive.events.get(randomUUID()), { code: "not_found" });
  assert.equal((await redrive.stats()).done, 3);
  assert.equal((await redrive.ready()).status, "ok");
});

test("integers above 2^53 stay exact as text", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  const text = '{"payload": [9007199254740993, {"payload": "]}\\""}], "n":12345678901234567890}';
  const { id } = await redrive.publish({ type: "ledger.booked", payload: new RawJson(text) });
  assert.equal(payloadText(await redrive.events.get(id)), text);
  await redrive.subscriptions.put("ledger", { patterns: ["ledger.*"] });
  const texts = [text, '"a"', "17", "null"];
  const published = await redrive.publishMany(texts.map((one) => ({ type: "ledger.booked", payload: new RawJson(one) })));
  const byId = new Map<string, string>();
  await until(async () => {
    const pulled = await redrive.subscriptions.pull("ledger", { max: 10, wait_ms: 200 });
    for (const event of pulled) byId.set(event.id, payloadText(event));
    return byId.size === texts.length;
  });
  assert.deepEqual(published.map(({ id }) => byId.get(id)), texts);
  assert.throws(() => new RawJson("{"), { code: "invalid_payload" });
  for (const bad of [undefined, 1n, () => 1]) {
    await assert.rejects(redrive.publish({ type: "a", payload: bad }), { name: "InvalidPayloadError", requests: 0 });
  }
});

test("many events are published in order, and pages return all of them", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  const events = Array.from({ length: 450 }, (_, n) => ({ type: n % 3 === 0 ? "a.b" : "a.c", payload: n }));
  const published = await redrive.publishMany(events);
  assert.equal(new Set(published.map(({ id }) => id)).size, 450);
  assert.deepEqual(await redrive.publishMany([]), []);
  const ids: string[] = [];
  for await (const event of redrive.events.list({ limit: 100 })) ids.push(event.id);
  assert.deepEqual(ids.reverse(), published.map(({ id }) => id));
  assert.equal((await redrive.events.list({ type: "a.b", limit: 60 }).take(1000)).length, 150);
  const page = await redrive.events.list({ limit: 10 });
  assert.equal(page.data.length, 10);
  const large = Array.from({ length: 10_001 }, () => ({ type: "a.d", payload: 1 }));
  const stored = await redrive.publishMany(large, { idempotencyKey: "large" });
  assert.deepEqual(await redrive.publishMany(large, { idempotencyKey: "large" }), stored);
  assert.equal(new Set(stored.map(({ id }) => id)).size, large.length);
  const batch = [{ type: "a.b", payload: 1 }, { type: "not a type", payload: 2 }];
  await assert.rejects(redrive.publishMany(batch, { idempotencyKey: "batch" }), (error) => {
    assert.ok(error instanceof RedriveError && error.code === "invalid_batch");
    assert.deepEqual([error.errors[0]?.index, error.idempotencyKey], [1, "batch"]);
    return true;
  });
});

test("dead letters are listed, grouped, redriven and purged", TIMEOUT, async (t) => {
  const redrive = (await startServer(t)).client();
  await redrive.subscriptions.put("billing", { patterns: ["order.*"], retry: { max_attempts: 1 } });
  const { id } = await redrive.publish({ type: "order.created", payload: { order: 7 } });
  const fail = async () => {
    const [event] = await redrive.subscriptions.pull("billing", { wait_ms: 5000 });
    assert.ok(event);
    assert.equal(event.id, id);
    await redrive.subscriptions.nack("billing", { leases: [event.lease], reason: "no stock" });
    await until(async () => (await redrive.stats()).dlq === 1);
  };
  await fail();
  const [letter] = await redrive.dlq.list({ subscription: "billing" }).take(10);
  assert.match(letter?.errors[0] ?? "", /no stock/);
  assert.equal(letter?.reason, "attempts_exhausted");
  assert.equal((await redrive.dlq.groups()).data[0]?.count, 1);
  assert.deepEqual((await redrive.dlq.get(id)).data[0]?.payload, { order: 7 });
  assert.deepEqual(await redrive.dlq.retryMany({ filter: {}, dry_run: true }), { matched: 1, retried: 0, next: null });
  assert.deepEqual(await redrive.dlq.retry(id, { payload: { order: 8 } }), { id });
  await fail();
  assert.deepEqual((await redrive.dlq.get(id)).data[0]?.payload, { order: 8 });
  assert.deepEqual(await redrive.dlq.purge(0), { purged: 1 });
  await assert.rejects(redrive.dlq.retry(id), RedriveError);
});

/** A receiver that verifies webhooks with this package. */
async function receiver(t: TestContext, verifier: () => Webhook) {
  const messages: WebhookMessage[] = [];
  const refused: unknown[] = [];
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      verifier()
        .verify(Buffer.concat(parts), request.headers)
        .then(
          (message) => (messages.push(message), response.writeHead(204).end()),
          (error: unknown) => (refused.push(error), response.writeHead(401).end()),
        );
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hooks`, messages, refused };
}

test("webhooks of both schemes are verified, also during a rotation", TIMEOUT, async (t) => {
  const server = await startServer(t, { args: ["--allow-range", "127.0.0.0/8"] });
  const redrive = server.client();
  for (const signing of ["hmac", "ed25519"]) {
    let secrets: string[] = ["whsec_" + "A".repeat(32)];
    const hook = await receiver(t, () => new Webhook(secrets));
    const endpoint = await redrive.endpoints.create({ url: hook.url, patterns: ["order.*"], signing });
    assert.match(endpoint.secret, signing === "hmac" ? /^whsec_/ : /^whpk_/);
    assert.equal((await redrive.endpoints.test(endpoint.id)).status, 401);
    secrets = [endpoint.secret];
    const { id } = await redrive.publish({ type: "order.created", payload: { by: signing } });
    await until(() => hook.messages.length === 1);
    assert.deepEqual([hook.messages[0]?.id, hook.messages[0]?.data], [id, { by: signing }]);

    const rotated = await redrive.endpoints.rotateSecret(endpoint.id);
    assert.equal(rotated.data.length, 2);
    for (const one of rotated.data) {
      secrets = [one.secret];
      assert.equal((await redrive.endpoints.test(endpoint.id)).status, 204, "each secret is enough");
    }
    assert.equal((await redrive.endpoints.update(endpoint.id, { description: "shop" })).description, "shop");
    await until(async () => (await redrive.endpoints.attempts(endpoint.id)).data.length > 0);
    assert.equal((await redrive.endpoints.list()).data.length, 1);
    assert.equal((await redrive.endpoints.countReplay(endpoint.id)).would_replay, 0);
    const replay = await redrive.endpoints.replay(endpoint.id);
    assert.equal((await redrive.replays.get(replay.id)).endpoint, endpoint.id);
    assert.deepEqual(await redrive.events.replay(id, endpoint.id), { replayed: true });
    await redrive.endpoints.remove(endpoint.id);
    await assert.rejects(redrive.endpoints.get(endpoint.id), { code: "not_found" });
  }
});

test("tokens restrict a client, and the stream reports changes", TIMEOUT, async (t) => {
  const server = await startSqlite(t); // other servers learn of a new token later
  const admin = await server.createToken("admin");
  const redrive = server.client({ token: admin });
  await until(() => server.client().stats().then(() => false, () => true)); // the server notices the first token within a second
  await assert.rejects(server.client({ token: "" }).stats(), { code: "token_required", status: 401 });
  const { token, id } = await redrive.tokens.create({ name: "shop", scopes: ["publish"], expires_in_s: 60 });
  const shop = server.client({ token });
  const stop = new AbortController();
  const seen: string[] = [];
  const watching = (async () => {
    for await (const message of redrive.events.watch("order.*", { signal: stop.signal })) seen.push(message.kind);
  })();
  // Published again until the stream is open.
  await until(async () => {
    await shop.publish({ type: "order.created", payload: 1 });
    return seen.includes("published") && seen.includes("done");
  });
  stop.abort();
  await assert.rejects(watching, { name: "AbortError" });
  await assert.rejects(shop.stats(), { code: "missing_scope", status: 403 });
  assert.equal((await redrive.tokens.list().take(10)).length, 2);
  await redrive.tokens.revoke(id);
  await until(() => shop.publish({ type: "a", payload: 1 }).then(() => false, (error: RedriveError) => error.code === "invalid_token"));
  assert.ok(!JSON.stringify(redrive).includes(admin) && !inspect(redrive).includes(admin), "no token is shown");
});

test("a publish survives a restart of the server, and is one event", TIMEOUT, async (t) => {
  const server = await startServer(t);
  const redrive = server.client({ retries: { baseDelayMs: 100, maxAttempts: 10 } });
  await redrive.publish({ type: "a", payload: 0 });
  await server.kill();
  const waiting = redrive.publish({ type: "order.created", payload: 1 });
  await server.restart();
  const { id } = await waiting;
  assert.deepEqual((await redrive.events.list({ type: "order.created" }).take(10)).map((event) => event.id), [id]);
});

test("an unreachable server is a network error", TIMEOUT, async (t) => {
  const server = await startSqlite(t);
  await server.kill();
  const twoRequests = server.client({ retries: { maxAttempts: 2, baseDelayMs: 1 } });
  await assert.rejects(twoRequests.publish({ type: "a", payload: 0 }), (error) => {
    assert.ok(error instanceof RedriveError);
    assert.deepEqual([error.code, error.status, error.requests, error.outcomeUnknown], ["network_error", 0, 2, true]);
    assert.match(error.message, /ECONNREFUSED.*redrive serve/);
    assert.ok(error.idempotencyKey);
    return true;
  });
});

test("invalid addresses are refused before any request", () => {
  for (const url of ["localhost:8080", "ftp://x", "https://anna:pw@example.com", "https://example.com/?a=b", ""]) {
    assert.throws(() => new Redrive({ url }), TypeError, url);
  }
  assert.equal(new Redrive({ url: "https://example.com/redrive/" }).url, "https://example.com/redrive");
});
