// Runs the compiled tests of the package and of its example, with bounded time: node scripts/test.mjs [part of a path]
//
// The tests with a server run twice, at the same time: on SQLite, and on PostgreSQL with three servers behind a load balancer. The
// handlers of a minute run beside them. REDRIVE_TEST_POSTGRES names a PostgreSQL server; a private one is started by default.
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, readdirSync, symlinkSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const TIMEOUT_MS = 400_000;
const folder = fileURLToPath(new URL("../", import.meta.url));
const example = fileURLToPath(new URL("../../../examples/shop-typescript/", import.meta.url));
const children = new Set();

/** Compiles the example with the dependencies of this folder, so that nothing is downloaded for it. */
function buildExample() {
  if (!existsSync(`${example}node_modules`)) {
    mkdirSync(`${example}node_modules`);
    symlinkSync(folder, `${example}node_modules/redrive`, "dir");
    symlinkSync(`${folder}node_modules/@types`, `${example}node_modules/@types`, "dir");
  }
  execFileSync(process.execPath, [`${folder}node_modules/typescript/bin/tsc`, "-p", example], { stdio: "inherit" });
}

/** Starts PostgreSQL; returns its address, and how to stop it. */
async function startPostgres() {
  const server = spawn(fileURLToPath(new URL("../../postgres.sh", import.meta.url)), { stdio: ["pipe", "pipe", "inherit"] });
  const ended = once(server, "exit");
  const lines = createInterface({ input: server.stdout });
  const [address] = await Promise.race([once(lines, "line"), ended]);
  if (typeof address !== "string") throw new Error("the tests need PostgreSQL");
  const stop = async () => {
    server.stdin.end();
    await ended;
  };
  return { address, stop };
}

/** Runs test files in a process. */
async function runFiles(title, files, how = {}) {
  const reporter = process.env.TEST_REPORTER ?? "spec";
  return files.length === 0 || run(title, ["--test", `--test-reporter=${reporter}`, ...files], how);
}

/** Runs a program of Node; prints its output at once, or at its end if it runs beside another. Returns whether it succeeded. */
async function run(title, args, { env = {}, isBeside = false } = {}) {
  const runner = spawn(process.execPath, args, {
    env: { ...process.env, ...env },
    stdio: isBeside ? ["ignore", "pipe", "pipe"] : "inherit",
    timeout: TIMEOUT_MS,
  });
  children.add(runner);
  const startedAt = Date.now();
  const output = [];
  for (const stream of [runner.stdout, runner.stderr]) stream?.on("data", (data) => output.push(data));
  const [code] = await once(runner, "close");
  children.delete(runner);
  process.stdout.write(Buffer.concat(output));
  console.log(`${code === 0 ? "ok" : "FAILED"}: ${title}, ${((Date.now() - startedAt) / 1000).toFixed(0)} s`);
  return code === 0;
}

const part = process.argv[2] ?? "";
const files = readdirSync(`${folder}build/test`)
  .filter((file) => file.endsWith(".test.js"))
  .map((file) => `${folder}build/test/${file}`)
  .concat(`${example}build/test/shop.test.js`)
  .filter((path) => path.includes(part));
if (files.some((path) => path.startsWith(example))) buildExample();

const isLong = (path) => path.includes("/long_");
const isOnPostgresOnly = (path) => /server_(cluster|pg)\./.test(path);
// A bus waits by long polls alone, for which one server sees the events of the others only every few seconds: it runs on SQLite.
const isOnBoth = (path) => /server_(client|worker)\./.test(path);
const needsPostgres = "prisma".includes(part) || files.some((path) => isLong(path) || isOnPostgresOnly(path) || isOnBoth(path));
const postgres = needsPostgres ? await startPostgres() : undefined;
if (postgres) process.env.REDRIVE_TEST_POSTGRES = postgres.address;
process.once("exit", () => children.forEach((child) => child.kill()));
try {
  const onPostgres = files.filter((path) => isOnPostgresOnly(path) || isOnBoth(path));
  const passed = await Promise.all([
    runFiles("on SQLite", files.filter((path) => !isLong(path) && !isOnPostgresOnly(path))),
    runFiles("on PostgreSQL with three servers", onPostgres, { env: { REDRIVE_TEST_STORE: "postgres" }, isBeside: true }),
    runFiles("handlers of a minute", files.filter(isLong), { isBeside: true }),
    !"prisma".includes(part) || run("Prisma", [`${folder}scripts/prisma.mjs`], { isBeside: true }),
  ]);
  process.exitCode = passed.every(Boolean) ? 0 : 1;
} finally {
  await postgres?.stop();
}
