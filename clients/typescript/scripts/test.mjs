// Runs the compiled tests of the package and of its example, with bounded time: node scripts/test.mjs [part of a path]
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, symlinkSync } from "node:fs";
import { fileURLToPath } from "node:url";

const TIMEOUT_MS = 180_000;
const folder = fileURLToPath(new URL("../", import.meta.url));
const example = fileURLToPath(new URL("../../../examples/shop-typescript/", import.meta.url));

/** Compiles the example with the dependencies of this folder, so that nothing is downloaded for it. */
function buildExample() {
  if (!existsSync(`${example}node_modules`)) {
    mkdirSync(`${example}node_modules`);
    symlinkSync(folder, `${example}node_modules/redrive`, "dir");
    symlinkSync(`${folder}node_modules/@types`, `${example}node_modules/@types`, "dir");
  }
  execFileSync(process.execPath, [`${folder}node_modules/typescript/bin/tsc`, "-p", example], { stdio: "inherit" });
}

const part = process.argv[2] ?? "";
const files = readdirSync(`${folder}build/test`)
  .filter((file) => file.endsWith(".test.js"))
  .map((file) => `${folder}build/test/${file}`)
  .concat(`${example}build/test/shop.test.js`)
  .filter((path) => path.includes(part));
if (files.some((path) => path.startsWith(example))) buildExample();
const reporter = process.env.TEST_REPORTER ?? "spec";
const run = spawnSync(process.execPath, ["--test", `--test-reporter=${reporter}`, ...files], { stdio: "inherit", timeout: TIMEOUT_MS });
process.exitCode = run.status ?? 1;
