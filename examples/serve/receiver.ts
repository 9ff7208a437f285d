// Receives webhooks and verifies them: Node 20 or later, no dependencies. Node 23 runs this file as it is; Node 20 needs tsx, or
// the JavaScript version receiver.mjs.
//
//   WEBHOOK_SECRET=whsec_... npx tsx receiver.ts 9000
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";

const secret: Buffer = Buffer.from((process.env.WEBHOOK_SECRET ?? "").replace(/^whsec_/, ""), "base64");
const seen: Set<string> = new Set(); // in a real program: a table, in the same transaction as the work

/** Returns whether a signature matches and the timestamp is at most five minutes old. */
function isGenuine(headers: IncomingHttpHeaders, body: Buffer): boolean {
  const id: string = String(headers["webhook-id"] ?? "");
  const sentAt: string = String(headers["webhook-timestamp"] ?? "");
  if (!/^\d+$/.test(sentAt) || Math.abs(Date.now() / 1000 - Number(sentAt)) > 300) {
    return false; // too old: a possible replay
  }
  const expected: Buffer = createHmac("sha256", secret).update(`${id}.${sentAt}.`).update(body).digest();
  // During a secret rotation there are several signatures; one valid signature is enough.
  return String(headers["webhook-signature"] ?? "").split(" ").some((signature: string): boolean => {
    const [version, value] = signature.split(",");
    const given: Buffer = Buffer.from(value ?? "", "base64");
    return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
  });
}

const server = createServer(async (request, response) => {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part);
  const body: Buffer = Buffer.concat(parts);
  let status: number = 401;
  if (isGenuine(request.headers, body)) {
    status = 204; // any 2xx acknowledges the message
    const id: string = String(request.headers["webhook-id"]);
    if (!seen.has(id)) { // a message may be delivered twice
      seen.add(id);
      console.log("got", JSON.parse(body.toString()).type, id);
    }
  }
  response.writeHead(status).end();
});
server.listen(Number(process.argv[2] ?? 9000), "127.0.0.1", () => {
  console.log("listening on", (server.address() as AddressInfo).port);
});
