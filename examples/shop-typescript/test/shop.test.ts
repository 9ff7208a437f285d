import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { RedriveTestServer } from "redrive/testing";
import { startBilling, type Charge } from "../src/billing.js";
import { publishOrder } from "../src/orders.js";
import { createShipping } from "../src/shipping.js";

/** Waits until a condition holds; the timeout of the test ends it. */
async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 20));
}

test("paid orders are shipped once, and a declined card is a dead letter", { timeout: 30_000 }, async (t) => {
  const server = await RedriveTestServer.start({ args: ["--allow-range", "127.0.0.0/8"] });
  t.after(() => server.stop());
  const redrive = server.client();

  // The receiver of webhooks: its secret is known when the endpoint is created.
  const shipped: number[] = [];
  const shipping = createShipping(`whsec_${"A".repeat(32)}`, ({ order }) => void shipped.push(order));
  await once(shipping.listen(0, "127.0.0.1"), "listening");
  t.after(() => shipping.close());
  const url = `http://127.0.0.1:${(shipping.address() as AddressInfo).port}/hooks`;
  await redrive.endpoints.create({ url, patterns: ["order.paid"], secret: `whsec_${"A".repeat(32)}` });

  // A bank that is busy at first, and declines expired cards.
  const charges = new Map<string, number>();
  const billing = startBilling(redrive, async ({ card }, key): Promise<Charge> => {
    if (card === "expired") return "declined";
    charges.set(key, (charges.get(key) ?? 0) + 1);
    return charges.get(key) === 1 ? "busy" : "charged";
  });
  t.after(() => billing.stop());
  await billing.ready;

  const order = { order: 1, card: "visa", cents: 1990 };
  const { id } = await publishOrder(redrive, order);
  assert.equal((await publishOrder(redrive, order)).id, id, "a repeated request is the same event");
  const declined = await publishOrder(redrive, { order: 2, card: "expired", cents: 1990 });

  await until(async () => shipped.length === 1 && (await redrive.stats()).dlq === 1);
  await billing.stop();
  assert.deepEqual(shipped, [1]);
  assert.equal(charges.get(id), 2);
  const [letter] = (await redrive.dlq.get(declined.id)).data;
  assert.equal(letter?.reason, "permanent");
  assert.match(letter?.errors[0] ?? "", /the card of order 2 was declined/);
});

test("a request without a valid signature is refused", async (t) => {
  const shipping = createShipping(`whsec_${"A".repeat(32)}`, () => assert.fail("nothing is shipped"));
  await once(shipping.listen(0, "127.0.0.1"), "listening");
  t.after(() => shipping.close());
  const { port } = shipping.address() as AddressInfo;
  const { status } = await fetch(`http://127.0.0.1:${port}/hooks`, { method: "POST", body: "{}" });
  assert.equal(status, 401);
});
