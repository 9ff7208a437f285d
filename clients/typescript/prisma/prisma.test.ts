import assert from "node:assert/strict";
import { test } from "node:test";
import { PrismaPg } from "@prisma/adapter-pg";
import { publishTemplate } from "redrive/pg";
import { RedriveTestServer } from "redrive/testing";
import { PrismaClient } from "./generated/client.js";

const postgres = process.env["REDRIVE_TEST_POSTGRES"] ?? "";

test("Prisma publishes an event in the transaction that changes a row", { timeout: 60_000 }, async (t) => {
  const schema = `ts_prisma_${process.pid}`;
  const server = await RedriveTestServer.start({ db: `${postgres}?schema=${schema}` });
  const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: postgres }) });
  t.after(async () => {
    await server.stop();
    await prisma.$executeRawUnsafe(`DROP SCHEMA ${schema} CASCADE`);
    await prisma.$executeRaw`DROP TABLE prisma_account`;
    await prisma.$disconnect();
  });
  await prisma.$executeRaw`CREATE TABLE prisma_account (id int PRIMARY KEY, cents int NOT NULL)`;
  await prisma.account.create({ data: { id: 7, cents: 1000 } });

  const due_at = new Date(Date.now() + 3_600_000);
  const event = { type: "account.debited", payload: { account: 7, text: "100 % $1 'Zoë'" }, metadata: { tenant: "t-1" }, due_at };
  const debit = (fails: boolean) =>
    prisma.$transaction(async (tx) => {
      await tx.account.update({ where: { id: 7 }, data: { cents: { decrement: 100 } } });
      const rows = await tx.$queryRaw<{ id: string }[]>(...publishTemplate(event, { schema }));
      if (fails) throw new Error("rolled back");
      return rows[0]?.id ?? "";
    });
  await assert.rejects(debit(true), /rolled back/);
  const id = await debit(false);

  assert.equal((await prisma.account.findUniqueOrThrow({ where: { id: 7 } })).cents, 900);
  const redrive = server.client();
  assert.deepEqual((await redrive.events.list().take(10)).map((stored) => stored.id), [id]);
  const stored = await redrive.events.get(id);
  assert.deepEqual([stored.type, stored.payload, stored.metadata, stored.due_at], [event.type, event.payload, event.metadata, due_at.toISOString()]);
});
