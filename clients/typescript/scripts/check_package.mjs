// Packs the package, installs the tarball into an empty project, imports every entry and checks its types:
//   node scripts/check_package.mjs
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const MAX_TARBALL_BYTES = 100_000;
const folder = fileURLToPath(new URL("..", import.meta.url));
const project = mkdtempSync(join(tmpdir(), "redrive-package-"));
const npm = (args, cwd) => execFileSync("npm", args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });

/** Compiler options of projects that use the package. None has `skipLibCheck`. */
const PROJECTS = {
  "node16 with DOM": { module: "node16", moduleResolution: "node16", lib: ["ES2022", "DOM"], types: [] },
  "node16 with @types/node": { module: "node16", moduleResolution: "node16", lib: ["ES2022"], types: ["node"] },
  "bundler with DOM": { module: "esnext", moduleResolution: "bundler", lib: ["ES2022", "DOM"], types: [] },
};

const PROGRAM = `
import { EventBus, Redrive, Webhook, type LeasedEvent, type PublishedEvent } from "redrive";
import { DEFAULT_RETRY_POLICY } from "redrive/eventbus";
import { publishQuery } from "redrive/pg";
import { delayMs, presets } from "redrive/retry";
import { FakeClock, RedriveTestServer } from "redrive/testing";
import { Webhook as SameWebhook } from "redrive/webhook";

interface Order { order: number }
const redrive = new Redrive({ url: "http://127.0.0.1:8080", clock: new FakeClock() });
export const published: Promise<PublishedEvent> = redrive.publish<Order>({ type: "order.created", payload: { order: 7 } });
export const handler = (event: LeasedEvent<Order>): number => event.payload.order;
export const values: (string | null)[] = publishQuery({ type: "a", payload: 1 }).values;
export const delay: number = delayMs(presets.bus, 2, { event: "e", subscription: "s" });
export const retries: number = DEFAULT_RETRY_POLICY.maxRetries;
export const classes = [EventBus, Webhook, SameWebhook, RedriveTestServer];
`;

try {
  const [packed] = JSON.parse(npm(["pack", "--json", "--ignore-scripts", "--pack-destination", project], folder));
  for (const { path } of packed.files) {
    assert.match(path, /^(dist\/.*\.(js|d\.ts)|package\.json|README\.md|LICENSE-(MIT|APACHE))$/, "a file that does not belong into the package");
  }
  for (const path of ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "dist/index.js", "dist/index.d.ts"]) {
    assert.ok(packed.files.some((file) => file.path === path), `${path} is missing in the package`);
  }
  assert.ok(packed.size < MAX_TARBALL_BYTES, `the package has ${packed.size} bytes`);

  // Only the helpers for tests may need Node.
  const portable = packed.files.filter(({ path }) => path.endsWith(".js") && !path.startsWith("dist/testing/"));
  for (const { path } of portable) assert.doesNotMatch(readFileSync(join(folder, path), "utf8"), /from "node:/, path);

  writeFileSync(join(project, "package.json"), '{ "private": true, "type": "module" }');
  npm(["install", "--no-audit", "--no-fund", "--offline", join(project, packed.filename)], project);
  const { exports } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const entries = Object.keys(exports).filter((entry) => entry !== "./package.json").map((entry) => `redrive${entry.slice(1)}`);
  const imports = entries.map((entry) => `assert(Object.keys(await import("${entry}")).length > 0);`);
  writeFileSync(join(project, "imports.mjs"), `import assert from "node:assert/strict";\n${imports.join("\n")}\n`);
  execFileSync(process.execPath, ["imports.mjs"], { cwd: project, stdio: "inherit" });

  writeFileSync(join(project, "program.ts"), PROGRAM);
  for (const [name, options] of Object.entries(PROJECTS)) {
    const compilerOptions = { target: "ES2022", strict: true, noEmit: true, exactOptionalPropertyTypes: true, ...options };
    compilerOptions.typeRoots = [join(folder, "node_modules/@types")];
    writeFileSync(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["program.ts"] }));
    execFileSync(process.execPath, [join(folder, "node_modules/typescript/bin/tsc"), "-p", project], { stdio: "inherit" });
    console.log(`types: ${name}: ok`);
  }
  console.log(`package: ${packed.files.length} files, ${packed.size} bytes packed, ${entries.length} entries: ok`);
} finally {
  rmSync(project, { recursive: true, force: true });
}
