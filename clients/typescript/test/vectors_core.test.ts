import assert from "node:assert/strict";
import { test } from "node:test";
import { idempotencyKey } from "../src/idempotency.js";
import { decide, delayMs, identityHash, presets, type Decision, type Jitter, type RetryPolicy, type Situation } from "../src/retry/index.js";
import { Webhook, WebhookVerificationError } from "../src/webhook.js";
import { vectors, withVectors } from "./support.js";

test("the hash of an identity is that of the server", () => {
  const id = "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19";
  const hash = (seed: bigint, event: string, subscription: string, attempt: number) => identityHash({ seed, event, subscription }, attempt);
  assert.equal(hash(0n, "", "", 0), 0x01ec9852062a07ebn);
  assert.equal(hash(0n, id, "shipping", 2), 0x8a0acff5a1ab1df1n);
  assert.equal(hash(0n, id, "shipping", 3), 0xa86851062eaa34b3n);
  assert.equal(hash(0n, id, "billing", 2), 0xe103dc73024a3402n);
  assert.equal(hash(42n, id, "shipping", 2), 0x60ee1e81e0bb3db2n);
  assert.equal(hash((1n << 64n) - 1n, "évènement", "абонент", 0xffff_ffff), 0x01ee90f0733ca3bfn);
});

test("idempotency keys are those of the server", async () => {
  const scope = { tenantId: "tenant-123", correlationId: "corr-456" };
  assert.equal(
    await idempotencyKey("kill_switch_update", { ...scope, params: { switch_name: "all_execution" } }),
    "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578",
  );
  assert.equal(await idempotencyKey("charge"), "7ad546d1d3f8874dfb410b5b2d69d858ea167fbb06f40a7064815b514c623f2b");
  assert.equal(
    await idempotencyKey("kill_switch_update", { ...scope, params: { b: { y: (1n << 64n) - 1n, x: true }, a: [1, 2.5, null, "é"] } }),
    "3df5b3544de1e37296e321f8bd26797e706dc25bcb19b810c859c9ce50397d67",
  );
  await assert.rejects(idempotencyKey(""), /operation is empty/);
  await assert.rejects(idempotencyKey("op", { params: { x: NaN } }), /leave it out or send it as text/);
});

interface SignatureCase {
  name: string;
  secrets: string[];
  headers: Record<string, string>;
  body: string;
  now: number;
  tolerance_s?: number;
  valid: boolean;
  error?: string | null;
}

test("shared vectors: signatures", withVectors("signatures.json"), async (t) => {
  for (const one of casesOf<SignatureCase>(vectors("signatures.json"))) {
    await t.test(one.name, async () => {
      const verify = async () => {
        const webhook = new Webhook(one.secrets, { toleranceSeconds: one.tolerance_s, now: () => one.now * 1000 });
        await webhook.verify(one.body, one.headers);
      };
      if (one.valid) return verify();
      const error = await verify().then(
        () => assert.fail("the message must be refused"),
        (error: unknown) => error,
      );
      if (one.error != null && error instanceof WebhookVerificationError) assert.equal(error.code, one.error);
    });
  }
});

interface KeyCase {
  name?: string;
  operation: string;
  tenant_id?: string | null;
  correlation_id?: string | null;
  params?: unknown;
  additional_params?: unknown;
  key: string;
}

test("shared vectors: idempotency keys", withVectors("idempotency_keys.json"), async () => {
  for (const one of casesOf<KeyCase>(vectors("idempotency_keys.json"))) {
    const scope = { tenantId: one.tenant_id, correlationId: one.correlation_id, params: one.params ?? one.additional_params };
    assert.equal(await idempotencyKey(one.operation, scope), one.key, one.name ?? JSON.stringify(one));
  }
});

interface DelayCase {
  policy: { max_attempts: number; base_delay_ms: number; max_delay_ms: number; multiplier: number; jitter: Jitter; growth?: RetryPolicy["growth"] };
  seed: number | string;
  identity: { event: string; subscription: string };
  attempt: number;
  retry_after_ms?: number | null;
  delay_ms: number;
}

test("shared vectors: delays", withVectors("delays.json"), () => {
  for (const one of casesOf<DelayCase>(vectors("delays.json"))) {
    const { max_attempts, base_delay_ms, max_delay_ms, multiplier, jitter, growth } = one.policy;
    const policy = { maxAttempts: max_attempts, baseDelayMs: base_delay_ms, maxDelayMs: max_delay_ms, multiplier, jitter, growth };
    const delay = delayMs(policy, one.attempt, { ...one.identity, seed: BigInt(one.seed) }, one.retry_after_ms ?? undefined);
    assert.equal(delay, Number(one.delay_ms), JSON.stringify(one));
  }
});

test("shared vectors: decisions", withVectors("decisions.json"), () => {
  for (const one of casesOf<{ situation: Situation; decision: Decision }>(vectors("decisions.json"))) {
    const situation = { ...one.situation, seed: BigInt(one.situation.seed) };
    assert.deepEqual(decide(situation), one.decision, JSON.stringify(one));
  }
});

test("the presets have the delays of the server", () => {
  const nominal = (policy: RetryPolicy, attempts: number[]) =>
    attempts.map((attempt) => delayMs({ ...policy, jitter: "none" }, attempt, { event: "", subscription: "" }));
  assert.deepEqual(nominal(presets.bus, [1, 2, 3, 4, 5, 6, 7]), [0, 1000, 2000, 4000, 8000, 16000, 30000]);
  assert.deepEqual(nominal(presets.standard, [2, 3, 10, 4_000_000_000]), [5000, 300_000, 86_400_000, 86_400_000]);
  assert.deepEqual(nominal(presets.scheduler, [2, 3, 7]), [2000, 4000, 60_000]);
});

/** Vector files are an array, or an object with `cases`. */
function casesOf<T>(file: T[] | { cases: T[] }): T[] {
  const cases = Array.isArray(file) ? file : file.cases;
  assert.ok(cases.length > 0, "the file has no cases");
  return cases;
}
