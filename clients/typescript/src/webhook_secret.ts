import { webCrypto } from "./crypto.js";

/** Lengths of a shared secret that Standard Webhooks allows, in bytes. */
const MIN_SECRET_BYTES = 24;
const MAX_SECRET_BYTES = 64;

/** Length of the seed of an Ed25519 key pair, and of its public key, in bytes. */
const KEY_BYTES = 32;

/** PKCS #8 header before the seed of an Ed25519 key. */
const PKCS8_HEAD = [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/** A text is not a valid secret. The message never shows it. */
export class InvalidSecretError extends Error {
  override readonly name = "InvalidSecretError";
}

/** Verifies and makes the signatures of one version. */
export interface SigningKey {
  readonly version: "v1" | "v1a";
  verify(signature: Uint8Array, message: Uint8Array): Promise<boolean>;
  /** Missing for a public key. */
  readonly sign?: (message: Uint8Array) => Promise<Uint8Array>;
}

/** Reads a secret: `whsec_` (shared), `whpk_` (public key) or `whsk_` (private key), each with base64 behind it. */
export async function readSecret(secret: string): Promise<SigningKey> {
  const text = secret.trim();
  if (text.startsWith("whpk_")) {
    const key = fromBase64(text.slice(5));
    if (key?.length !== KEY_BYTES) throw new InvalidSecretError("a public key is `whpk_` and 32 bytes in base64");
    return publicKey(key);
  }
  if (text.startsWith("whsk_")) return privateKey(fromBase64(text.slice(5)));
  // Like the libraries of the standard, a shared secret without its prefix is read as well.
  const bytes = fromBase64(text.startsWith("whsec_") ? text.slice(6) : text);
  if (!bytes) throw new InvalidSecretError("a secret is `whsec_`, `whpk_` or `whsk_`, and base64 behind it");
  if (bytes.length < MIN_SECRET_BYTES || bytes.length > MAX_SECRET_BYTES) {
    throw new InvalidSecretError(`a shared secret has 24 to 64 bytes, not ${bytes.length}`);
  }
  const { subtle } = await webCrypto();
  const key = await subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign", "verify"]);
  return {
    version: "v1",
    verify: (signature, message) => subtle.verify("HMAC", key, signature as BufferSource, message as BufferSource),
    sign: async (message) => new Uint8Array(await subtle.sign("HMAC", key, message as BufferSource)),
  };
}

async function publicKey(bytes: Bytes): Promise<SigningKey> {
  const { subtle } = await webCrypto();
  const key = await subtle.importKey("raw", bytes, { name: "Ed25519" }, false, ["verify"]);
  return {
    version: "v1a",
    verify: (signature, message) => subtle.verify({ name: "Ed25519" }, key, signature as BufferSource, message as BufferSource),
  };
}

async function privateKey(bytes: Bytes | undefined): Promise<SigningKey> {
  const isLong = bytes?.length === 2 * KEY_BYTES;
  if (!bytes || (!isLong && bytes.length !== KEY_BYTES)) {
    throw new InvalidSecretError("a private key has the 32 bytes of its seed, or these and the 32 of its public key");
  }
  const { subtle } = await webCrypto();
  const pkcs8 = new Uint8Array([...PKCS8_HEAD, ...bytes.slice(0, KEY_BYTES)]);
  const key = await subtle.importKey("pkcs8", pkcs8, { name: "Ed25519" }, true, ["sign"]);
  const { x = "" } = await subtle.exportKey("jwk", key);
  const derived = fromBase64(x.replace(/-/g, "+").replace(/_/g, "/") + "=");
  if (!derived || (isLong && !derived.every((byte, at) => byte === bytes[KEY_BYTES + at]))) {
    throw new InvalidSecretError("the public half of the private key belongs to another key");
  }
  const { verify } = await publicKey(derived);
  return {
    version: "v1a",
    verify,
    sign: async (message) => new Uint8Array(await subtle.sign({ name: "Ed25519" }, key, message as BufferSource)),
  };
}

type Bytes = Uint8Array<ArrayBuffer>;

/** Decodes standard base64 with padding; `undefined` for other text. */
export function fromBase64(text: string): Bytes | undefined {
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return undefined;
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  } catch {
    return undefined;
  }
}

/** Encodes bytes as standard base64. */
export function toBase64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
