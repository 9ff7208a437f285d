#!/usr/bin/env node
// Lints docs/openapi.json, generates clients from it in two languages, compiles them and runs them against a server.
//
// node clients/openapi/test.mjs, with REDRIVE_BIN as the path of the redrive program (default: target/debug/redrive). The tools are
// installed on the first run: npm ci here, and pip into .venv. The exit code is 1 if anything is found.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "../..");
const document = join(root, "docs/openapi.json");
const redrive = process.env.REDRIVE_BIN ?? join(root, "target/debug/redrive");
const python = join(here, ".venv/bin/python");
const bin = (name) => join(here, "node_modules/.bin", name);
const failed = [];

/** Runs a program; returns its output, or records its failure and returns undefined. */
function run(title, program, args, { env = {}, accept = () => true } = {}) {
  const began = Date.now();
  const ended = spawnSync(program, args, { cwd: here, env: { ...process.env, ...env }, encoding: "utf8" });
  const output = `${ended.stdout ?? ""}${ended.stderr ?? ""}${ended.error ? String(ended.error) : ""}`;
  const ok = ended.status === 0 && accept(ended.stdout, output);
  console.log(`${ok ? "ok    " : "FAILED"} ${((Date.now() - began) / 1000).toFixed(1).padStart(5)} s  ${title}`);
  if (!ok) {
    failed.push(title);
    console.log(output.replaceAll(/^/gm, "    "));
  }
  return ok;
}

function install() {
  if (!existsSync(bin("redocly"))) run("npm ci", "npm", ["ci", "--no-audit", "--no-fund"]);
  if (!existsSync(python)) run("python -m venv", "python3", ["-m", "venv", ".venv"]);
  if (!existsSync(join(here, ".venv/bin/mypy"))) {
    run("pip install", python, ["-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"]);
  }
}

function lint() {
  const none = (stdout) => {
    const { totals } = JSON.parse(stdout);
    return totals.errors + totals.warnings + totals.ignored === 0;
  };
  run("redocly lint: 0 errors, 0 warnings", bin("redocly"), ["lint", "--config", "redocly.yaml", "--format", "json", document], {
    env: { REDOCLY_TELEMETRY: "off", REDOCLY_SUPPRESS_UPDATE_NOTICE: "true" },
    accept: none,
  });
  run("spectral lint: 0 results", bin("spectral"), ["lint", "--ruleset", "spectral.yaml", "--fail-severity", "hint", document]);
}

function generate() {
  rmSync(join(here, "generated"), { recursive: true, force: true });
  run("openapi-typescript", bin("openapi-typescript"), [document, "--output", "generated/openapi-typescript/schema.ts"]);
  run("@hey-api/openapi-ts", bin("openapi-ts"), ["--input", document, "--output", "generated/hey-api", "--no-log-file", "--file", "openapi-ts.config.mjs"]);
  run("tsc --strict without skipLibCheck", bin("tsc"), ["--project", "tsconfig.json"]);
  run("openapi-python-client", join(here, ".venv/bin/openapi-python-client"), [
    ...["generate", "--path", document, "--output-path", "generated/python", "--config", "openapi_python_client.yaml"],
    ...["--fail-on-warning", "--overwrite"],
  ]);
  run("python -m compileall", python, ["-m", "compileall", "-q", "generated/python"]);
  run("mypy", python, ["-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", "generated/.mypy_cache", "smoke/python_client.py"], {
    env: { MYPYPATH: "generated/python" },
  });
}

/** An address that no program listens on. */
function freeAddress() {
  return new Promise((resolve, reject) => {
    const probe = createServer().on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(`127.0.0.1:${port}`));
    });
  });
}

/** Starts a server on a temporary file, calls a function with its address and token, and stops it. */
async function withServer(use) {
  const folder = mkdtempSync(join(tmpdir(), "redrive-openapi-"));
  const database = join(folder, "redrive.db");
  const created = spawnSync(redrive, ["tokens", "create", "--db", database, "--name", "smoke", "--scope", "admin", "--json"], { encoding: "utf8" });
  const token = /rdt_[A-Za-z0-9_-]+/.exec(created.stdout ?? "")?.[0];
  if (!token) throw new Error(`${redrive} creates no token: ${created.error ?? created.stderr}`);
  const address = await freeAddress();
  const server = spawn(redrive, ["serve", "--db", database, "--listen", address], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  server.stderr.on("data", (data) => (log += data));
  const ended = new Promise((resolve) => server.on("exit", resolve));
  try {
    for (let attempt = 0; !(await fetch(`http://${address}/readyz`).catch(() => undefined))?.ok; attempt++) {
      if (attempt > 300 || server.exitCode !== null) throw new Error(`${redrive} does not serve: ${log}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await use({ REDRIVE_URL: `http://${address}`, REDRIVE_TOKEN: token });
  } finally {
    server.kill();
    await ended;
    rmSync(folder, { recursive: true, force: true });
  }
}

async function smoke(env) {
  const served = await (await fetch(`${env.REDRIVE_URL}/openapi.json`)).json();
  const isSame = JSON.stringify(sorted(served)) === JSON.stringify(sorted(JSON.parse(readFileSync(document, "utf8"))));
  if (!isSame && process.env.REDRIVE_OTHER_DOCUMENT !== "1") {
    failed.push("the server has another document than docs/openapi.json");
    console.log("FAILED          the server has another document than docs/openapi.json: build it anew");
  }
  for (const name of ["openapi_typescript", "hey_api"]) {
    run(`smoke test: ${name}`, process.execPath, [`generated/js/smoke/${name}.js`], { env });
  }
  run("smoke test: python_client", python, ["smoke/python_client.py"], { env: { ...env, PYTHONPATH: "generated/python" } });
}

/** A value with the keys of all objects in order. */
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]));
}

const began = Date.now();
install();
if (failed.length === 0) {
  lint();
  generate();
  await withServer(smoke);
}
console.log(`${failed.length} failed, ${((Date.now() - began) / 1000).toFixed(1)} s`);
process.exitCode = failed.length === 0 ? 0 : 1;
