import type { PublishedEvent, Redrive } from "redrive";

/** Payload of `order.created`. */
export interface Order {
  order: number;
  card: string;
  cents: number;
}

/** Publishes `order.created`. A repeated call, from another process too, publishes the order once. */
export function publishOrder(redrive: Redrive, order: Order): Promise<PublishedEvent> {
  return redrive.publish<Order>({ type: "order.created", payload: order }, { idempotencyKey: `order-${order.order}-created` });
}
