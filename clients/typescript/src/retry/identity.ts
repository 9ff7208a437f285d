import { sipHash24 } from "./siphash.js";
import type { Identity } from "./types.js";

/** Second half of the SipHash key; the first is the seed. ASCII "redrive1". */
const DOMAIN = 0x7265647269766531n;

const encoder = new TextEncoder();

/** Hashes an identity and an attempt to 64 bits: the random number of that attempt's jitter. */
export function identityHash(identity: Identity, attempt: number): bigint {
  // Lengths first, so that ("ab", "c") and ("a", "bc") differ.
  const texts = [encoder.encode(identity.event), encoder.encode(identity.subscription)];
  const bytes = new Uint8Array(texts.reduce((sum, text) => sum + 8 + text.length, 4));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const text of texts) {
    view.setBigUint64(at, BigInt(text.length), true);
    bytes.set(text, at + 8);
    at += 8 + text.length;
  }
  view.setUint32(at, attempt, true);
  return sipHash24(BigInt.asUintN(64, BigInt(identity.seed ?? 0)), DOMAIN, bytes);
}
