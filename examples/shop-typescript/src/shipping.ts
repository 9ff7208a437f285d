import { createServer, type IncomingMessage, type Server } from "node:http";
import { Webhook, WebhookVerificationError } from "redrive";

/** Ships a paid order. */
export type Ship = (payment: { order: number }) => void;

/** Creates the server that receives the webhooks of `order.paid`. */
export function createShipping(secret: string, ship: Ship): Server {
  const webhook = new Webhook(secret);
  const seen = new Set<string>(); // a real program keeps the ids in a table, written in the transaction of the work
  return createServer(async (request, response) => {
    try {
      const message = await webhook.verify<{ order: number }>(await readBody(request), request.headers);
      if (!seen.has(message.id)) {
        seen.add(message.id);
        ship(message.data);
      }
      response.writeHead(204).end();
    } catch (error) {
      response.writeHead(error instanceof WebhookVerificationError ? 401 : 500).end();
    }
  });
}

async function readBody(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return Buffer.concat(parts);
}
