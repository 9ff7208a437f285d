import { PermanentError, type Redrive, type Worker } from "redrive";
import type { Order } from "./orders.js";

/** Answer of the bank. */
export type Charge = "charged" | "declined" | "busy";

/** Charges a card. `key` is the same for every attempt, so that the bank charges once. */
export type Bank = (order: Order, key: string) => Promise<Charge>;

/** Starts the worker that charges every order and publishes `order.paid`. */
export function startBilling(redrive: Redrive, bank: Bank): Worker {
  return redrive.worker<Order>(
    "billing",
    async (event) => {
      const charge = await bank(event.payload, event.id);
      if (charge === "declined") throw new PermanentError(`the card of order ${event.payload.order} was declined`);
      if (charge === "busy") throw new Error("the bank is busy");
      const { order } = event.payload;
      await redrive.publish({ type: "order.paid", payload: { order } }, { idempotencyKey: `order-${order}-paid` });
    },
    {
      concurrency: 8,
      subscription: { patterns: ["order.created"], retry: { max_attempts: 5, base_delay_ms: 200 } },
      signals: true,
      onError: (error) => console.error("billing:", error),
    },
  );
}
