/** Servers of the tests: one on a SQLite file, or three on PostgreSQL behind a load balancer. */
import { randomUUID } from "node:crypto";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { Redrive, type RedriveOptions } from "../src/index.js";
import { RedriveTestServer, type TestServerOptions } from "../src/testing/index.js";
import { RoundRobinProxy } from "./proxy.js";

/** PostgreSQL server of the tests, such as `postgres://redrive@127.0.0.1/postgres`; `scripts/test.mjs` starts one. */
export const postgres = process.env["REDRIVE_TEST_POSTGRES"];

/** Reason to skip a test that needs PostgreSQL. */
export const needsPostgres = postgres === undefined && "REDRIVE_TEST_POSTGRES is not set";

const isCluster = process.env["REDRIVE_TEST_STORE"] === "postgres";

/** Servers that a test reaches under one address. */
export interface TestServer {
  readonly url: string;
  client(options?: RedriveOptions): Redrive;
  createToken: RedriveTestServer["createToken"];
  kill(): Promise<void>;
  restart(): Promise<void>;
}

interface ServerOptions extends TestServerOptions {
  /** Schema on PostgreSQL; a new one by default. */
  schema?: string;
}

/** Starts what most tests run on: a server on SQLite, or with `REDRIVE_TEST_STORE=postgres` a cluster on PostgreSQL. */
export async function startServer(t: TestContext, options: ServerOptions = {}): Promise<TestServer> {
  return isCluster ? startCluster(t, options) : startSqlite(t, options);
}

/** Starts a server on a SQLite file. */
export async function startSqlite(t: TestContext, options: TestServerOptions = {}): Promise<RedriveTestServer> {
  const server = await RedriveTestServer.start({ binary: findBinary(), ...options });
  t.after(() => server.stop());
  return server;
}

/** Three servers on one schema of PostgreSQL, behind a round-robin proxy. */
export class Cluster implements TestServer {
  #kills = 0;

  constructor(
    readonly servers: readonly [RedriveTestServer, RedriveTestServer, RedriveTestServer],
    readonly proxy: RoundRobinProxy,
  ) {}

  get url(): string {
    return this.proxy.url;
  }

  client(options: RedriveOptions = {}): Redrive {
    return new Redrive({ url: this.url, ...options });
  }

  createToken(...scopes: Parameters<RedriveTestServer["createToken"]>): Promise<string> {
    return this.servers[0].createToken(...scopes);
  }

  /** Kills one server: the first, then the second, and so on. */
  async kill(): Promise<void> {
    await this.servers[this.#kills++ % this.servers.length]?.kill();
  }

  /** Starts the killed servers again. */
  async restart(): Promise<void> {
    await Promise.all(this.servers.filter(({ pid }) => pid === undefined).map((server) => server.restart()));
  }
}

/** Starts three servers on PostgreSQL, and stops them after the test. */
export async function startCluster(t: TestContext, options: ServerOptions = {}): Promise<Cluster> {
  const { schema = `ts_${randomUUID().replaceAll("-", "")}`, ...others } = options;
  const started: RedriveTestServer[] = [];
  const folder = mkdtempSync(join(tmpdir(), "redrive-cluster-"));
  const args = [...(others.args ?? []), "--secret-key-file", join(folder, "secret.key")]; // one key for all
  let proxy: RoundRobinProxy | undefined;
  t.after(async () => {
    proxy?.close();
    await Promise.all(started.map((server) => server.stop()));
    rmSync(folder, { recursive: true, force: true });
    await query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`);
  });
  const start = async () => {
    const server = await RedriveTestServer.start({ binary: findBinary(), db: `${postgres}?schema=${schema}`, ...others, args });
    started.push(server);
    return server;
  };
  const first = await start(); // creates the schema
  const servers = [first, ...(await Promise.all([start(), start()]))] as const;
  proxy = await RoundRobinProxy.start(servers.map(({ url }) => url));
  return new Cluster(servers, proxy);
}

async function query(text: string): Promise<void> {
  const client = new pg.Client(postgres);
  await client.connect();
  await client.query(text).finally(() => client.end());
}

/** The binary under test: `REDRIVE_BIN`, or that of this repository. */
export function findBinary(): string {
  const built = fileURLToPath(new URL("../../../../target/debug/redrive", import.meta.url));
  const path = process.env["REDRIVE_BIN"] ?? built;
  if (!existsSync(path)) throw new Error(`${path} does not exist: build it with cargo build, or set REDRIVE_BIN`);
  return path;
}
