// Tests the helper for Prisma with a real client and the PostgreSQL server in REDRIVE_TEST_POSTGRES: node scripts/prisma.mjs
import { execFileSync } from "node:child_process";
import { existsSync, statSync } from "node:fs";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("../prisma/", import.meta.url));
const run = (program, args, env = {}) =>
  execFileSync(program, args, { cwd: folder, env: { ...process.env, ...env }, stdio: ["ignore", "inherit", "inherit"] });
const changedAt = (path) => statSync(folder + path).mtimeMs;

const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 20 || (major === 20 && minor < 19)) {
  console.log(`Prisma needs Node 20.19 or later: not tested with ${process.version}`);
  process.exit();
}
// Without scripts: they download engines, which neither this generator nor its client needs.
if (!existsSync(`${folder}node_modules`) || changedAt("package-lock.json") > changedAt("node_modules")) {
  run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
}
// Any existing program as the engine prevents a download.
const offline = { PRISMA_SCHEMA_ENGINE_BINARY: process.execPath, PRISMA_HIDE_UPDATE_MESSAGE: "1", CHECKPOINT_DISABLE: "1" };
run(process.execPath, ["node_modules/prisma/build/index.js", "generate", "--schema", "schema.prisma"], offline);
run(process.execPath, ["../node_modules/typescript/bin/tsc", "-p", "."]);
run(process.execPath, ["--test", "--test-reporter=spec", "build/prisma.test.js"]);
