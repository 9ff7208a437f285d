import { identityHash } from "./identity.js";
import { exactJitter, type ExactJitter } from "./jitter.js";
import type { Identity, RetryPolicy } from "./types.js";

/** Delays of a policy in whole numbers, as decision records have them. */
export interface Backoff {
  growth?: "exponential" | "standard_webhooks";
  base_delay_ms: number;
  multiplier_millionths: number;
  max_delay_ms: number;
  jitter: ExactJitter;
}

/** Largest unsigned 64-bit number: delays saturate there, as in the server. */
const MAX = (1n << 64n) - 1n;

const STANDARD_WEBHOOKS_SECONDS = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400];

/** Writes the delays of a policy in whole numbers. */
export function backoffOf(policy: RetryPolicy): Backoff {
  return {
    ...(policy.growth === "standard_webhooks" ? { growth: policy.growth } : {}),
    base_delay_ms: policy.baseDelayMs,
    multiplier_millionths: Math.round(policy.multiplier * 1e6),
    max_delay_ms: policy.maxDelayMs,
    jitter: exactJitter(policy.jitter),
  };
}

/** Delay before `attempt` without jitter: `min(base · multiplier^(attempt - 2), max)`; zero before the first. */
function nominalDelay(backoff: Backoff, attempt: number): bigint {
  if (attempt < 2) return 0n;
  const max = BigInt(backoff.max_delay_ms);
  if (backoff.growth === "standard_webhooks") {
    const last = STANDARD_WEBHOOKS_SECONDS.length - 1;
    const seconds = STANDARD_WEBHOOKS_SECONDS[Math.min(attempt - 2, last)] ?? 0;
    return smaller(larger(BigInt(seconds) * 1000n, BigInt(backoff.base_delay_ms)), max);
  }
  const grown = backoff.base_delay_ms * power(backoff.multiplier_millionths / 1e6, attempt - 2);
  if (Number.isNaN(grown)) return 0n; // 0 · ∞
  return grown >= Number(MAX) ? max : smaller(BigInt(Math.trunc(grown)), max);
}

/** Range of delays before `attempt`. `minimum` is a delay that the destination asked for. */
export function exactRange(backoff: Backoff, attempt: number, minimum?: bigint): [min: bigint, max: bigint] {
  const nominal = nominalDelay(backoff, attempt);
  let [min, max] = attempt < 2 ? [0n, 0n] : spread(backoff, nominal);
  if (minimum !== undefined && minimum > min) {
    // A requested minimum is never undercut: jitter applies above it only.
    min = minimum;
    max = larger(max, saturating(minimum + widthAbove(backoff.jitter, minimum, nominal)));
  }
  return [min, max];
}

/** Delay before `attempt` for this identity. Deterministic: a replay gives the same delay. */
export function exactDelay(backoff: Backoff, attempt: number, minimum: bigint | undefined, identity: Identity): bigint {
  const [min, max] = exactRange(backoff, attempt, minimum);
  return min + ((identityHash(identity, attempt) * (max - min + 1n)) >> 64n);
}

/** Computes the delay before an attempt of a policy in milliseconds, jitter included. `retryAfterMs` is never undercut. */
export function delayMs(policy: RetryPolicy, attempt: number, identity: Identity, retryAfterMs?: number | undefined): number {
  const minimum = retryAfterMs === undefined ? undefined : BigInt(retryAfterMs);
  return Number(exactDelay(backoffOf(policy), attempt, minimum, identity));
}

function spread(backoff: Backoff, nominal: bigint): [bigint, bigint] {
  const { jitter } = backoff;
  if (jitter === "none") return [nominal, nominal];
  if (jitter === "full") return [0n, nominal];
  if (jitter === "equal") return [nominal / 2n, nominal];
  if ("additive" in jitter) return [nominal, saturating(nominal + BigInt(jitter.additive.ms))];
  const width = share(nominal, jitter.proportional.millionths);
  const cap = larger(BigInt(backoff.max_delay_ms), nominal);
  return [larger(nominal - width, 0n), smaller(saturating(nominal + width), cap)];
}

function widthAbove(jitter: ExactJitter, minimum: bigint, nominal: bigint): bigint {
  if (jitter === "none") return 0n;
  if (jitter === "full") return nominal;
  if (jitter === "equal") return nominal / 2n;
  return "additive" in jitter ? BigInt(jitter.additive.ms) : share(minimum, jitter.proportional.millionths);
}

function share(amount: bigint, millionths: number): bigint {
  return saturating((amount * BigInt(millionths)) / 1_000_000n);
}

/** Computes `base^exponent` by repeated squaring: `Math.pow` may differ in the last bit between engines. */
function power(base: number, exponent: number): number {
  let result = 1;
  for (let square = base; exponent > 0; exponent = Math.floor(exponent / 2)) {
    if (exponent % 2 === 1) result *= square;
    square *= square;
  }
  return result;
}

function saturating(value: bigint): bigint {
  return smaller(value, MAX);
}

function smaller(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

function larger(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
