// Runs the shop against a local server: orders are charged by a worker and shipped by a webhook.
//
//   redrive serve --allow-range 127.0.0.0/8 &
//   npm start
import { once } from "node:events";
import { Redrive } from "redrive";
import { startBilling } from "./billing.js";
import { publishOrder } from "./orders.js";
import { createShipping } from "./shipping.js";

const PORT = 9000;
const redrive = new Redrive(); // REDRIVE_SERVER and REDRIVE_TOKEN, or http://127.0.0.1:8080

const endpoint = await redrive.endpoints.create({ url: `http://127.0.0.1:${PORT}/hooks`, patterns: ["order.paid"] });
const shipping = createShipping(endpoint.secret, ({ order }) => console.log(`order ${order}: shipped`));
await once(shipping.listen(PORT, "127.0.0.1"), "listening");

const billing = startBilling(redrive, async ({ order, card }) => {
  if (card === "expired") return "declined";
  console.log(`order ${order}: charged`);
  return "charged";
});

await billing.ready; // the subscription receives events that are published from now on
const firstOrder = Math.floor(Date.now() / 1000) * 10; // other orders in every run
for (const [index, card] of ["visa", "expired", "visa"].entries()) {
  await publishOrder(redrive, { order: firstOrder + index, card, cents: 1990 });
}

console.log("Ctrl-C stops the shop");
await billing.finished;
shipping.close();
await redrive.endpoints.remove(endpoint.id);
for await (const letter of redrive.dlq.list({ subscription: "billing" })) console.log(`dead letter: ${letter.errors.at(-1)?.split("\n")[0]}`);
