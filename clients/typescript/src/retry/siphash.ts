const MASK = (1n << 64n) - 1n;

function rotate(value: bigint, bits: bigint): bigint {
  return ((value << bits) | (value >> (64n - bits))) & MASK;
}

/** Hashes bytes with SipHash-2-4 under a 128-bit key. */
export function sipHash24(key0: bigint, key1: bigint, bytes: Uint8Array): bigint {
  let v0 = key0 ^ 0x736f6d6570736575n;
  let v1 = key1 ^ 0x646f72616e646f6dn;
  let v2 = key0 ^ 0x6c7967656e657261n;
  let v3 = key1 ^ 0x7465646279746573n;
  const round = () => {
    v0 = (v0 + v1) & MASK;
    v1 = rotate(v1, 13n) ^ v0;
    v0 = rotate(v0, 32n);
    v2 = (v2 + v3) & MASK;
    v3 = rotate(v3, 16n) ^ v2;
    v0 = (v0 + v3) & MASK;
    v3 = rotate(v3, 21n) ^ v0;
    v2 = (v2 + v1) & MASK;
    v1 = rotate(v1, 17n) ^ v2;
    v2 = rotate(v2, 32n);
  };
  const compress = (word: bigint) => {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  };
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const whole = bytes.length - (bytes.length % 8);
  for (let at = 0; at < whole; at += 8) compress(view.getBigUint64(at, true));
  let last = BigInt(bytes.length & 0xff) << 56n;
  for (let at = whole; at < bytes.length; at += 1) last |= BigInt(view.getUint8(at)) << BigInt(8 * (at - whole));
  compress(last);
  v2 ^= 0xffn;
  for (let n = 0; n < 4; n += 1) round();
  return v0 ^ v1 ^ v2 ^ v3;
}
