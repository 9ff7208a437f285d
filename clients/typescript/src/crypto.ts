/** The Web Crypto API, in the part that this package uses. */
interface WebCrypto {
  readonly subtle: SubtleCrypto;
  getRandomValues<T extends Uint8Array>(bytes: T): T;
}

let found: WebCrypto | undefined = (globalThis as { crypto?: WebCrypto }).crypto;

/** Returns the Web Crypto API. Node 18 has it only as a module. */
export async function webCrypto(): Promise<WebCrypto> {
  if (!found?.subtle) {
    const name = "node:crypto"; // not a literal in `import`, so that bundlers for other platforms leave it alone
    found = ((await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as { webcrypto: WebCrypto }).webcrypto;
  }
  return found;
}

/** Returns `count` random bytes in hexadecimal. */
export async function randomHex(count: number): Promise<string> {
  return toHex((await webCrypto()).getRandomValues(new Uint8Array(count)));
}

/** Hashes a text with SHA-256, in hexadecimal. */
export async function sha256Hex(text: string): Promise<string> {
  const digest = await (await webCrypto()).subtle.digest("SHA-256", new TextEncoder().encode(text));
  return toHex(new Uint8Array(digest));
}

/** Writes bytes in hexadecimal. */
export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
