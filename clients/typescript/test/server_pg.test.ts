import assert from "node:assert/strict";
import { test } from "node:test";
import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import pg from "pg";
import { publishQuery, publishTemplate } from "../src/pg.js";
import { needsPostgres as skip, postgres, startCluster } from "./servers.js";

test("an event is published by the transaction that commits", { timeout: 30_000, skip }, async (t) => {
  const schema = `ts_pg_${process.pid}`;
  const redrive = (await startCluster(t, { schema })).client();
  const client = new pg.Client(postgres);
  await client.connect();
  t.after(() => client.end());
  const event = { type: "account.debited", payload: { cents: 9_007_199_254_740_991 }, metadata: { tenant: "t-1" } };

  await client.query("BEGIN");
  await client.query(publishQuery(event, { schema }));
  await client.query("ROLLBACK");
  await client.query("BEGIN");
  const { rows } = await client.query<{ id: string }>(publishQuery(event, { schema }));
  await client.query("COMMIT");
  const id = rows[0]?.id ?? "";
  const stored = await redrive.events.get(id);
  assert.deepEqual([stored.type, stored.payload, stored.metadata], [event.type, event.payload, event.metadata]);

  const due = new Date(Date.now() + 3_600_000);
  const other = { ...event, id: "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19", due_at: due };
  await drizzle({ client }).transaction(async (tx) => {
    await tx.execute(sql(...publishTemplate(other, { schema })));
  });
  assert.equal((await redrive.events.get(other.id)).due_at, due.toISOString());
  assert.equal((await redrive.events.list()).data.length, 2);
});
