import { execFile, spawn, type ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, delimiter, join, resolve } from "node:path";
import { promisify } from "node:util";
import { Redrive, type RedriveOptions } from "../client.js";
import type { CreatedToken, Scope } from "../types/admin.js";

/** Options of a test server. */
export interface TestServerOptions {
  /** Path of the binary; `REDRIVE_BIN`, or `redrive` in the path by default. */
  binary?: string | undefined;
  /** Further arguments of `redrive serve`, such as `["--allow-range", "127.0.0.0/8"]`. */
  args?: readonly string[] | undefined;
  /** Further variables of the environment. */
  env?: Record<string, string> | undefined;
  /** Database, such as `postgres://…`; a temporary file by default. Servers that share it need one key: `--secret-key-file` in `args`. */
  db?: string | undefined;
  /** Time to wait for the start; 20 s by default. */
  startTimeoutMs?: number | undefined;
}

/** Longest tail of the server's log that is kept, in characters. */
const MAX_LOG_CHARS = 64 * 1024;

/** Time that a stop waits before it kills. */
const STOP_TIMEOUT_MS = 10_000;

/**
 * A real server on a temporary file and a free port of this machine.
 *
 * ```ts
 * const server = await RedriveTestServer.start();
 * await server.client().publish({ type: "order.created", payload: { order: 7 } });
 * await server.stop();
 * ```
 */
export class RedriveTestServer {
  readonly #options: TestServerOptions;
  readonly #folder: string;
  #process: ChildProcess | undefined;
  #address = "127.0.0.1:0";
  #log = "";

  private constructor(options: TestServerOptions, folder: string) {
    this.#options = options;
    this.#folder = folder;
  }

  /** Starts a server and waits until it listens. */
  static async start(options: TestServerOptions = {}): Promise<RedriveTestServer> {
    const folder = await mkdtemp(join(tmpdir(), "redrive-test-"));
    const server = new RedriveTestServer(options, folder);
    try {
      await server.#spawn();
    } catch (error) {
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
    return server;
  }

  /** Address of the server. It stays the same after a restart. */
  get url(): string {
    return `http://${this.#address}`;
  }

  /** Process id; `undefined` while it does not run. */
  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** The last lines of the server's log. */
  get log(): string {
    return this.#log;
  }

  /** Returns a client of this server. */
  client(options: RedriveOptions = {}): Redrive {
    return new Redrive({ url: this.url, ...options });
  }

  /** Creates a token on the command line. From the first one on, every request needs a token. */
  async createToken(...scopes: Scope[]): Promise<string> {
    const args = ["tokens", "create", "--name", "test", "--scope", scopes.join(), "--db", this.#db, "--json"];
    const { stdout } = await promisify(execFile)(findBinary(this.#options.binary), args, this.#processOptions);
    return (JSON.parse(stdout) as CreatedToken).token;
  }

  /** Ends the process at once, as a crash does (SIGKILL). */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Starts the server again on the same file and port, after `kill`, or after a graceful stop of this call. */
  async restart(): Promise<void> {
    await this.#end("SIGTERM");
    await this.#spawn();
  }

  /** Stops the server gracefully and deletes its file. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
    await rm(this.#folder, { recursive: true, force: true });
  }

  get #db(): string {
    return this.#options.db ?? join(this.#folder, "redrive.db");
  }

  /** Options of a process in the server's folder, so that no other `redrive.toml` applies. */
  get #processOptions() {
    return { cwd: this.#folder, env: { ...withoutSettings(), ...this.#options.env } };
  }

  async #spawn(): Promise<void> {
    const { args = [], startTimeoutMs = 20_000 } = this.#options;
    // Servers that share a database share a key, which the caller names.
    const key = args.includes("--secret-key-file") ? [] : ["--secret-key-file", join(this.#folder, "secret.key")];
    const all = ["serve", "--db", this.#db, "--listen", this.#address, ...key, ...args];
    const child = spawn(findBinary(this.#options.binary), all, { ...this.#processOptions, stdio: ["ignore", "pipe", "pipe"] });
    this.#process = child;
    const killWithParent = () => child.kill("SIGKILL");
    process.once("exit", killWithParent);
    child.once("exit", () => process.removeListener("exit", killWithParent));
    const keep = (text: string) => (this.#log = (this.#log + text).slice(-MAX_LOG_CHARS));
    child.stderr.setEncoding("utf8").on("data", keep);
    await new Promise<void>((resolve, reject) => {
      const fail = (reason: string) => {
        child.kill("SIGKILL");
        reject(new Error(`redrive serve ${reason}:\n${this.#log}`));
      };
      const timer = setTimeout(() => fail(`did not listen within ${startTimeoutMs} ms`), startTimeoutMs);
      let output = "";
      child.stdout.setEncoding("utf8").on("data", (text: string) => {
        output = (output + text).slice(-MAX_LOG_CHARS);
        const address = /listens on http:\/\/(\S+)/.exec(output)?.[1];
        if (address === undefined) return;
        this.#address = address;
        clearTimeout(timer);
        resolve();
      });
      child.once("error", (error) => fail(`cannot be started (${error.message})`));
      child.once("exit", (code) => {
        clearTimeout(timer);
        fail(`ended with ${code}`);
      });
    });
  }

  async #end(signal: "SIGTERM" | "SIGKILL"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    child.kill(signal);
    const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
    await ended;
    clearTimeout(timer);
  }
}

function findBinary(given: string | undefined): string {
  const named = given ?? process.env["REDRIVE_BIN"];
  if (named) return basename(named) === named ? named : resolve(named); // the process runs in another folder
  const folders = (process.env["PATH"] ?? "").split(delimiter).filter(Boolean);
  const found = folders.map((folder) => join(folder, "redrive")).find((path) => existsSync(path));
  if (found) return found;
  throw new Error("there is no `redrive` in the path: install it, or name it in REDRIVE_BIN");
}

/** The environment without settings of another server. */
function withoutSettings(): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(REDRIVE|OTEL)_/.test(name)));
}
