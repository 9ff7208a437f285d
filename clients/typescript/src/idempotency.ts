import { sha256Hex } from "./crypto.js";

/** Largest size of parameters as canonical JSON, in bytes. */
const MAX_INPUT_BYTES = 1 << 20;

/** Deepest nesting of parameters. */
const MAX_DEPTH = 128;

/** Inputs of an idempotency key beside its operation. */
export interface IdempotencyScope {
  tenantId?: string | null | undefined;
  correlationId?: string | null | undefined;
  /** Parameters of the operation, as JSON values. The order of keys does not matter. */
  params?: unknown;
}

/**
 * Computes the key of an operation and its parameters: the same in Rust, Python and TypeScript.
 *
 * ```ts
 * const key = await idempotencyKey("charge", { tenantId: "t-1", params: { order: 7 } });
 * await redrive.publish({ type: "card.charged", payload: { order: 7 } }, { idempotencyKey: key });
 * ```
 */
export async function idempotencyKey(operation: string, scope: IdempotencyScope = {}): Promise<string> {
  if (operation === "") throw new TypeError('the operation is empty: name what must not happen twice, such as "charge card"');
  return sha256Hex(
    canonicalJson({
      additional_params: scope.params ?? {},
      correlation_id: scope.correlationId ?? "",
      operation,
      tenant_id: scope.tenantId ?? "",
    }),
  );
}

/** Writes JSON without white space and with the keys of objects sorted at every level. */
export function canonicalJson(value: unknown): string {
  const text = write(value, 0) ?? "null";
  if (new TextEncoder().encode(text).length > MAX_INPUT_BYTES) {
    throw new RangeError(`the parameters are larger than ${MAX_INPUT_BYTES} bytes: use a digest of them instead`);
  }
  return text;
}

/** Writes a value; `undefined` for one that JSON leaves out. */
function write(value: unknown, depth: number): string | undefined {
  if (depth > MAX_DEPTH + 1) throw new RangeError(`the parameters are nested more than ${MAX_DEPTH} levels deep: flatten them`);
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new RangeError("a parameter is NaN or infinite: leave it out or send it as text");
    return String(value).replace("e+", "e");
  }
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  if ("toJSON" in value && typeof value.toJSON === "function") return write(value.toJSON(), depth);
  if (Array.isArray(value)) return `[${value.map((item) => write(item, depth + 1) ?? "null").join(",")}]`;
  const entries = Object.entries(value)
    .sort(([a], [b]) => byCodePoint(a, b))
    .map(([key, item]) => [JSON.stringify(key), write(item, depth + 1)] as const)
    .filter(([, item]) => item !== undefined);
  return `{${entries.map(([key, item]) => `${key}:${item}`).join(",")}}`;
}

/** Compares texts as UTF-8 does. UTF-16, the order of JavaScript, differs above U+FFFF. */
function byCodePoint(a: string, b: string): number {
  const [left, right] = [Array.from(a), Array.from(b)];
  for (let at = 0; at < Math.min(left.length, right.length); at += 1) {
    const difference = (left[at]?.codePointAt(0) ?? 0) - (right[at]?.codePointAt(0) ?? 0);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}
