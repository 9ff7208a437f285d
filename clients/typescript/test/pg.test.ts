import assert from "node:assert/strict";
import { test } from "node:test";
import { sql } from "drizzle-orm";
import { PgDialect } from "drizzle-orm/pg-core";
import { publishQuery, publishTemplate } from "../src/pg.js";
import { RawJson } from "../src/index.js";

const event = {
  type: "account.debited",
  payload: { account: 7 },
  id: "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19",
  metadata: { tenant: "t-1" },
  due_at: new Date("2026-01-31T12:00:00Z"),
};
const values = ["account.debited", '{"account":7}', event.id, '{"tenant":"t-1"}', "2026-01-31T12:00:00.000Z"];

test("a query has the arguments of redrive.publish", () => {
  const text = "SELECT redrive.publish($1::text, $2::text::json, $3::text::uuid, $4::text::json, $5::text::timestamptz) AS id";
  assert.deepEqual(publishQuery(event), { text, values });
  const ledger = publishQuery({ type: "a", payload: new RawJson("9007199254740993") });
  assert.deepEqual(ledger.values, ["a", "9007199254740993", null, null, null]);
});

test("a template has one text more than values", () => {
  const [strings, ...given] = publishTemplate(event);
  assert.deepEqual(given, values);
  assert.equal(strings.length, values.length + 1);
  assert.deepEqual([...strings.raw], [...strings]);
});

test("Drizzle makes the same query of a template", () => {
  const { sql: text, params } = new PgDialect().sqlToQuery(sql(...publishTemplate(event)));
  assert.deepEqual({ text, values: params }, publishQuery(event));
});

test("a schema is quoted if it needs quotes", () => {
  assert.match(publishQuery(event, { schema: "Events" }).text, /^SELECT "Events"\.publish\(/);
  assert.match(publishQuery(event, { schema: 'a"; DROP' }).text, /^SELECT "a""; DROP"\.publish\(/);
  assert.throws(() => publishQuery(event, { schema: "" }), TypeError);
  assert.throws(() => publishQuery({ type: "a", payload: undefined }), { code: "invalid_payload" });
});
