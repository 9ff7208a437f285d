/** Helpers of the tests: scripted servers, shared vectors, waiting. */
import { existsSync, readFileSync } from "node:fs";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import type { Fetch, FetchInit } from "../src/http.js";

// After a failed test, a worker that still runs must not keep the process alive.
after(() => void setTimeout(() => process.exit(), 2000).unref());

/** The folder of the package: tests run from `build/test`. */
export const packageFolder = fileURLToPath(new URL("../../", import.meta.url));

function pathOfVectors(name: string): string {
  return fileURLToPath(new URL(`../../../vectors/${name}`, import.meta.url));
}

/** Reads shared vectors. Whole numbers beyond 2^53 become texts, so that they stay exact. */
export function vectors<T>(name: string): T {
  const exact = readFileSync(pathOfVectors(name), "utf8").replace(/([:[,]\s*)(\d{16,})(?=\s*[,}\]])/g, '$1"$2"');
  return JSON.parse(exact) as T;
}

/** Options of a test that needs shared vectors: it is skipped as long as the file is missing. */
export function withVectors(name: string) {
  const skip = existsSync(pathOfVectors(name)) ? false : `clients/vectors/${name} does not exist yet`;
  return { timeout: 20_000, skip };
}

export interface Sent extends FetchInit {
  url: URL;
}

/** Responses of a scripted server. */
export type Answer = { status: number; body?: unknown; text?: string; headers?: Record<string, string> } | "network_error";

/** A `fetch` that answers from a function and records the requests. */
export function scripted(answer: (request: Sent, index: number) => Answer | Promise<Answer>): { fetch: Fetch; sent: Sent[] } {
  const sent: Sent[] = [];
  const fetch: Fetch = async (url, init) => {
    const request = { ...init, url: new URL(url) };
    sent.push(request);
    const given = await answer(request, sent.length - 1);
    if (given === "network_error") throw new TypeError("fetch failed", { cause: new Error("connection reset") });
    const text = given.text ?? JSON.stringify(given.body ?? {});
    return new Response([204, 304].includes(given.status) ? null : text, {
      status: given.status,
      headers: given.headers ?? {},
    });
  };
  return { fetch, sent };
}

/** A problem document. */
export function problem(status: number, code: string, headers: Record<string, string> = {}): Answer {
  return { status, headers, body: { type: `urn:redrive:problem:${code}`, title: code, status, code, detail: `detail of ${code}` } };
}

/** Waits until a condition holds; fails after `timeoutMs`. */
export async function until(condition: () => boolean | Promise<boolean>, timeoutMs = 30_000): Promise<void> {
  const end = Date.now() + timeoutMs;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`the condition did not become true within ${timeoutMs} ms: ${condition.toString()}`);
    await pause(20);
  }
}

/** Waits. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
