import assert from "node:assert/strict";
import { generateKeyPairSync, sign } from "node:crypto";
import { test } from "node:test";
import { InvalidSecretError, Webhook, WebhookVerificationError } from "../src/webhook.js";

/** Example of the specification of Standard Webhooks. */
const published = {
  secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
  body: '{"test": 2432232314}',
  sentAt: 1614265330,
  headers: {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
  },
};
const OTHER_SECRET = `whsec_${Buffer.alloc(24, 7).toString("base64")}`;

/** Verifier at a number of seconds after the example was sent. */
function at(seconds: number, secrets: string | string[] = published.secret) {
  return new Webhook(secrets, { now: () => (published.sentAt + seconds) * 1000 });
}

function refused(code: string) {
  return (error: unknown) => error instanceof WebhookVerificationError && error.code === code;
}

test("the example of the standard is genuine", async () => {
  const message = await at(0).verify(published.body, published.headers);
  assert.equal(message.id, "msg_p5jXN8AQM9LWM0D4loKWxJek");
  assert.equal(message.text, published.body);
  assert.deepEqual(message.sentAt, new Date(1_614_265_330_000));
  const signed = await at(0).sign(message.id, published.body);
  assert.deepEqual(signed, published.headers);
});

test("a body or a header that was changed is refused", async () => {
  const { body, headers } = published;
  await assert.rejects(at(0).verify(body.replace("4}", "5}"), headers), refused("no_matching_signature"));
  for (const name of ["webhook-id", "webhook-signature"]) {
    await assert.rejects(at(0).verify(body, { ...headers, [name]: "v1,other" }), refused("no_matching_signature"));
  }
  await assert.rejects(at(0).verify(body, { ...headers, "webhook-timestamp": "1614265331" }), refused("no_matching_signature"));
  await assert.rejects(at(0, OTHER_SECRET).verify(body, headers), refused("no_matching_signature"));
});

test("the timestamp must be within the tolerance", async () => {
  const { body, headers } = published;
  for (const seconds of [-300, 300]) await at(seconds).verify(body, headers);
  await assert.rejects(at(301).verify(body, headers), refused("timestamp_too_old"));
  await assert.rejects(at(-301).verify(body, headers), refused("timestamp_too_new"));
  for (const timestamp of ["", "soon", "1614265330.5", "-1", "1e9"]) {
    const code = timestamp === "" ? "missing_header" : "invalid_timestamp";
    await assert.rejects(at(0).verify(body, { ...headers, "webhook-timestamp": timestamp }), refused(code));
  }
});

test("one matching signature of one secret is enough", async () => {
  const { body, headers, secret } = published;
  const signatures = `v1,AAAA v2,${"A".repeat(44)} rubbish ${headers["webhook-signature"]}`;
  await at(0, [OTHER_SECRET, secret]).verify(body, { ...headers, "webhook-signature": signatures });
  await at(0, `${OTHER_SECRET} ${secret}`).verify(body, headers);
  const both = await at(0, [OTHER_SECRET, secret]).sign("msg_1", body);
  assert.equal(both["webhook-signature"]?.split(" ").length, 2);
  for (const one of [OTHER_SECRET, secret]) await at(0, one).verify(body, both);
});

test("v1a is verified with the public key alone", async () => {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const { x = "" } = publicKey.export({ format: "jwk" });
  const { d = "" } = privateKey.export({ format: "jwk" });
  const publicSecret = `whpk_${Buffer.from(x, "base64url").toString("base64")}`;
  const privateSecret = `whsk_${Buffer.from(d, "base64url").toString("base64")}`;
  const { body, headers } = published;
  const signed = Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`);
  const signature = sign(null, signed, privateKey).toString("base64");
  const genuine = { ...headers, "webhook-signature": `v1a,${signature}` };
  await at(0, publicSecret).verify(body, genuine);
  assert.equal((await at(0, privateSecret).sign(headers["webhook-id"], body))["webhook-signature"], `v1a,${signature}`);
  // A version belongs to one kind of key.
  await assert.rejects(at(0, publicSecret).verify(body, { ...headers, "webhook-signature": `v1,${signature}` }), refused("no_matching_signature"));
  await assert.rejects(at(0, publicSecret).verify(body, headers), refused("no_matching_signature"));
  await assert.rejects(at(0).verify(body, genuine), refused("no_matching_signature"));
});

test("headers and bodies of every platform are read", async () => {
  const { body, headers } = published;
  const upper = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toUpperCase(), [value]]));
  for (const given of [headers, new Headers(headers), upper]) await at(0).verify(Buffer.from(body), given);
  const bytes = new TextEncoder().encode(body);
  await at(0).verify(bytes.buffer, headers);
  await assert.rejects(at(0).verify(JSON.parse(body) as string, headers), /raw body/);
  await assert.rejects(at(0).verify(body, {}), refused("missing_header"));
  const noJson = await at(0).sign("msg_1", "not JSON");
  await assert.rejects(at(0).verify("not JSON", noJson), refused("invalid_body"));
});

test("an invalid secret is an error that does not show it", async () => {
  assert.throws(() => new Webhook(""), /redrive endpoints add/);
  for (const secret of ["whsec_c2hvcnQ=", "whpk_c2hvcnQ=", "whsk_c2hvcnQ=", "whsec_no base64"]) {
    await assert.rejects(new Webhook([secret]).verify(published.body, { ...published.headers }), (error) => {
      assert.ok(error instanceof InvalidSecretError || error instanceof WebhookVerificationError);
      assert.ok(!error.message.includes(secret.slice(6)));
      return true;
    });
  }
});
