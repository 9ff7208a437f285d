/** Compiles every snippet of the guide and the README, and runs those that need no other system. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { before, test } from "node:test";
import { promisify } from "node:util";
import type { Express } from "express";
import type { FastifyInstance } from "fastify";
import type { Hono } from "hono";
import { Webhook } from "../src/webhook.js";
import { findBinary, startServer } from "./servers.js";
import { packageFolder } from "./support.js";

const PAGES = { guide: "../../docs/guide/typescript.md", readme: "README.md" };
const folder = `${packageFolder}build/docs/`;
const secret = `whsec_${Buffer.alloc(24, 7).toString("base64")}`;

/** Part of Prisma's client: the real one is generated for each database. */
const AMBIENT = `declare module "@prisma/client" {
  interface Queries {
    $queryRaw<T = unknown>(query: TemplateStringsArray, ...values: unknown[]): Promise<T>;
    $executeRaw(query: TemplateStringsArray, ...values: unknown[]): Promise<number>;
  }
  export class PrismaClient implements Queries {
    $queryRaw: Queries["$queryRaw"];
    $executeRaw: Queries["$executeRaw"];
    $transaction<T>(work: (tx: Queries) => Promise<T>): Promise<T>;
  }
}
`;

/** Writes the snippets of a page as modules, named by their headings: `guide-publish-1.ts`. */
function extract(page: keyof typeof PAGES): string[] {
  const names: string[] = [];
  let heading = "";
  let count = 0;
  let lines: string[] | undefined;
  for (const line of readFileSync(packageFolder + PAGES[page], "utf8").split("\n")) {
    if (lines && line === "```") {
      const name = `${page}-${heading}-${(count += 1)}`;
      writeFileSync(`${folder}${name}.ts`, `${lines.join("\n")}\nexport {};\n`);
      names.push(name);
      lines = undefined;
    } else if (lines) lines.push(line);
    else if (line === "```ts") lines = [];
    else if (line.startsWith("## ")) [heading, count] = [line.slice(3).toLowerCase().replace(/\W+/g, "-"), 0];
  }
  return names;
}

before(async () => {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const names = [...extract("guide"), ...extract("readme")];
  assert.ok(names.length > 15);
  writeFileSync(`${folder}ambient.d.ts`, AMBIENT);
  const options = { rootDir: ".", outDir: ".", noEmitOnError: true };
  writeFileSync(`${folder}tsconfig.json`, JSON.stringify({ extends: "../../tsconfig.json", compilerOptions: options, include: ["."], exclude: [] }));
  const compiler = `${packageFolder}node_modules/typescript/bin/tsc`;
  await promisify(execFile)(process.execPath, [compiler, "-p", folder]).catch(({ stdout }: { stdout: string }) => assert.fail(stdout));
});

/** Runs a snippet in a process of its own. */
async function run(name: string, env: Record<string, string>, ...args: string[]): Promise<string> {
  const path = `${folder}${name}.js`;
  const { REDRIVE_SERVER: url } = env;
  if (url) writeFileSync(path, readFileSync(path, "utf8").replace("http://127.0.0.1:8080", url));
  const { NODE_TEST_CONTEXT: _, ...inherited } = process.env; // a test runner of its own
  const options = { env: { ...inherited, ...env }, timeout: 20_000 };
  const { stdout } = await promisify(execFile)(process.execPath, [...args, path], options);
  return stdout;
}

test("the snippets of the guide run", { timeout: 40_000 }, async (t) => {
  const server = await startServer(t);
  const env = { REDRIVE_SERVER: server.url };
  const uuid = /^[0-9a-f-]{36}\n$/;
  assert.match(await run("guide-publish-1", env), uuid);
  assert.equal(await run("guide-publish-2", env), "");
  assert.equal(await run("guide-errors-1", env), "");
  assert.match(await run("guide-eventbus-1", env), uuid);
  assert.equal((await server.client().events.list()).data.length, 6);
  assert.match(await run("guide-testing-1", { REDRIVE_BIN: findBinary() }, "--test"), /^# pass 1$/m);
  assert.equal(await run("guide-testing-2", {}), "network_error\n");
  assert.match(await run("readme-publish-1", env), uuid);
});

const body = JSON.stringify({ type: "order.created", timestamp: "2026-01-31T12:00:00.000Z", data: { order: 7 } });

/** Sends a genuine and a forged webhook; returns the statuses. */
async function statuses(send: (headers: Record<string, string>) => Promise<number>): Promise<number[]> {
  const genuine = { "content-type": "application/json", ...(await new Webhook(secret).sign("e-1", body)) };
  return [await send(genuine), await send({ ...genuine, "webhook-id": "e-2" })];
}

async function load<T>(name: string): Promise<T> {
  process.env["WEBHOOK_SECRET"] = secret;
  return (await import(`${folder}${name}.js`)) as T;
}

test("the adapters of web frameworks verify webhooks", { timeout: 40_000 }, async (t) => {
  t.mock.method(console, "log", () => undefined);
  const express = await load<{ app: Express }>("guide-webhooks-1");
  const listening = express.app.listen(0);
  t.after(() => listening.close());
  const url = `http://127.0.0.1:${(listening.address() as AddressInfo).port}/hooks`;
  assert.deepEqual(await statuses(async (headers) => (await fetch(url, { method: "POST", headers, body })).status), [204, 401]);

  const fastify = await load<{ app: FastifyInstance }>("guide-webhooks-2");
  const inject = async (headers: Record<string, string>) =>
    (await fastify.app.inject({ method: "POST", url: "/hooks", headers, payload: body })).statusCode;
  assert.deepEqual(await statuses(inject), [204, 401]);

  const hono = await load<{ app: Hono }>("guide-webhooks-3");
  const request = async (headers: Record<string, string>) =>
    (await hono.app.request("/hooks", { method: "POST", headers, body }, { WEBHOOK_SECRET: secret })).status;
  assert.deepEqual(await statuses(request), [204, 401]);

  const next = await load<{ POST: (request: Request) => Promise<Response> }>("guide-webhooks-4");
  const post = async (headers: Record<string, string>) =>
    (await next.POST(new Request("http://localhost/hooks", { method: "POST", headers, body }))).status;
  assert.deepEqual(await statuses(post), [204, 401]);
});
