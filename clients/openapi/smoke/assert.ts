/** Fails the smoke test unless a condition holds. */
export function assert(condition: unknown, what: string): asserts condition {
  if (!condition) throw new Error(what);
}

declare const process: { env: Record<string, string | undefined> };

/** Address and token of the server under test. */
export const server = {
  url: process.env["REDRIVE_URL"] ?? "",
  token: process.env["REDRIVE_TOKEN"] ?? "",
};
