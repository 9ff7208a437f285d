import assert from "node:assert/strict";
import { test } from "node:test";
import { Redrive, RedriveError } from "../src/index.js";
import { FakeClock } from "../src/testing/index.js";
import { problem, scripted, vectors, type Answer } from "./support.js";

interface Policy {
  max_attempts: number;
  base_delay_ms: number;
  max_delay_ms: number;
  jitter: string;
  max_retry_after_ms: number;
  deadline_ms: number;
}

interface RetryCase {
  name: string;
  request: string;
  policy?: Partial<Policy>;
  script: { network_error?: true; status?: number; problem?: string; body?: unknown; text?: string; headers?: Record<string, string> }[];
  requests: number;
  waits_ms: number[];
  same_idempotency_key?: boolean;
  result?: unknown;
  error?: { code: string; status?: number; outcome_unknown?: boolean; retry_after_ms?: number };
}

interface RetryVectors {
  now: string;
  policy: Policy;
  problems: Record<string, unknown>;
  cases: RetryCase[];
}

const calls: Record<string, (redrive: Redrive) => Promise<unknown>> = {
  publish: (redrive) => redrive.publish({ type: "order.created", payload: { order: 7 } }),
  publish_many: (redrive) => redrive.publishMany([{ type: "order.created", payload: { order: 7 } }]),
  get: (redrive) => redrive.subscriptions.get("billing"),
  put: (redrive) => redrive.subscriptions.put("billing", { patterns: ["order.*"] }),
  delete: (redrive) => redrive.subscriptions.remove("billing"),
  ack: (redrive) => redrive.subscriptions.ack("billing", { leases: ["a.b"] }),
  pull: (redrive) => redrive.subscriptions.pull("billing"),
  post: (redrive) => redrive.tokens.create({ name: "shop", scopes: ["publish"] }),
};

const retries = vectors<RetryVectors>("client_retries.json");
for (const one of retries.cases) {
  test(`retries: ${one.name}`, { timeout: 10_000 }, async () => {
    const policy = { ...retries.policy, ...one.policy };
    const clock = new FakeClock(new Date(retries.now));
    const times: number[] = [];
    const { fetch, sent } = scripted((_, index) => {
      times.push(clock.now());
      const step = one.script[index];
      assert.ok(step, "no more requests than in the script");
      if (step.network_error) return "network_error";
      const body = step.problem === undefined ? step.body : retries.problems[step.problem];
      return { ...step, status: step.status ?? 200, body } as Answer;
    });
    const redrive = new Redrive({
      url: "http://127.0.0.1:1",
      fetch,
      clock,
      retries: {
        maxAttempts: policy.max_attempts,
        baseDelayMs: policy.base_delay_ms,
        maxDelayMs: policy.max_delay_ms,
        jitter: policy.jitter,
        maxRetryAfterMs: policy.max_retry_after_ms,
        deadlineMs: policy.deadline_ms,
      },
    });
    const call = calls[one.request];
    assert.ok(call, `unknown kind ${one.request}`);
    const ended = call(redrive).then(
      (result) => ({ result }),
      (error: unknown) => ({ error }),
    );
    await clock.advance(120_000);
    const end = await ended;
    assert.equal(sent.length, one.requests);
    assert.deepEqual(times.slice(1).map((time, index) => time - (times[index] ?? 0)), one.waits_ms);
    if (one.request.startsWith("publish")) {
      const keys = new Set(sent.map((request) => request.headers["idempotency-key"]));
      assert.equal(keys.size, 1);
      assert.match([...keys][0] ?? "", /^[!-~]{16,200}$/);
      assert.equal(new Set(sent.map((request) => request.body)).size, 1, "the same bytes");
    }
    if (!one.error) return assert.deepEqual(end, { result: one.result });
    assert.ok("error" in end && end.error instanceof RedriveError, `not ${JSON.stringify(end)}`);
    assert.equal(end.error.code, one.error.code);
    if (one.error.status !== undefined) assert.equal(end.error.status, one.error.status);
    if (one.error.outcome_unknown !== undefined) assert.equal(end.error.outcomeUnknown, one.error.outcome_unknown);
    if (one.error.retry_after_ms !== undefined) assert.equal(end.error.retryAfterMs, one.error.retry_after_ms);
  });
}

interface PageCase {
  name: string;
  query: Record<string, string | number>;
  take?: number;
  pages: { ids?: string[]; next?: string | null; status?: number; code?: string }[];
  requests: Record<string, string>[];
  items: string[];
  error?: string;
}

for (const one of vectors<{ path: string; cases: PageCase[] }>("pages.json").cases) {
  test(`pages: ${one.name}`, { timeout: 10_000 }, async () => {
    const { fetch, sent } = scripted((_, index) => {
      const page = one.pages[index];
      assert.ok(page, "no more requests than pages");
      if (page.code !== undefined) return problem(page.status ?? 400, page.code);
      return { status: 200, body: { data: (page.ids ?? []).map((id) => ({ id })), next: page.next ?? null } };
    });
    const redrive = new Redrive({ url: "http://127.0.0.1:1", fetch, retries: { baseDelayMs: 1, maxDelayMs: 1 } });
    const items: string[] = [];
    const iterate = async () => {
      for await (const event of redrive.events.list(one.query)) if (items.push(event.id) === one.take) break;
    };
    if (one.error === undefined) await iterate();
    else await assert.rejects(iterate(), { code: one.error });
    assert.deepEqual(items, one.items);
    assert.deepEqual(sent.map(({ url }) => Object.fromEntries(url.searchParams)), one.requests);
  });
}
