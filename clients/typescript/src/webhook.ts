/** Verifies webhooks: Standard Webhooks with `v1` and `v1a` signatures. */
import { fromBase64, readSecret, toBase64, type SigningKey } from "./webhook_secret.js";
import type { Time } from "./types/common.js";

export { InvalidSecretError } from "./webhook_secret.js";

/** Reason to refuse a request. */
export type WebhookProblem =
  | "missing_header"
  | "invalid_timestamp"
  | "timestamp_too_old"
  | "timestamp_too_new"
  | "no_matching_signature"
  | "invalid_body";

/** A request is not a genuine webhook of this sender. Answer with 401 or 400 and do nothing else. */
export class WebhookVerificationError extends Error {
  override readonly name = "WebhookVerificationError";
  /** Reason of the refusal. */
  readonly code: WebhookProblem;

  constructor(code: WebhookProblem, message: string) {
    super(message);
    this.code = code;
  }
}

/** A verified message. */
export interface WebhookMessage<T = unknown> {
  /** Id of the event, the same for every attempt: handle each id once. */
  id: string;
  /** Type of the event. */
  type: string;
  /** When the event was published. */
  timestamp: Time;
  /** Payload of the event. */
  data: T;
  /** When this attempt was sent. */
  sentAt: Date;
  /** The verified body, for payloads with integers above 2^53. */
  text: string;
}

/** Headers of a request: those of `fetch`, or an object of Node. Names in any case. */
export type WebhookHeaders =
  | { get(name: string): string | null }
  | { readonly [name: string]: string | readonly string[] | undefined };

/** Options of a verifier. */
export interface WebhookOptions {
  /** Largest difference between the timestamp and the clock, in seconds; 300 by default. */
  toleranceSeconds?: number | undefined;
  /** Source of time in milliseconds, for tests. */
  now?: (() => number) | undefined;
}

/**
 * Verifies webhooks with the secrets of an endpoint: `whsec_…`, `whpk_…`, or both during a rotation.
 *
 * ```ts
 * const webhook = new Webhook(process.env.WEBHOOK_SECRET!);
 * const message = await webhook.verify(rawBody, request.headers);
 * ```
 */
export class Webhook {
  readonly #keys: Promise<SigningKey[]>;
  readonly #toleranceSeconds: number;
  readonly #now: () => number;

  constructor(secrets: string | readonly string[], options: WebhookOptions = {}) {
    const texts = typeof secrets === "string" ? secrets.split(/[\s,]+/).filter(Boolean) : secrets;
    // Without any secret every message would be refused for a reason that does not help.
    if (texts.length === 0) throw new TypeError("give the secret of the endpoint: `redrive endpoints add` prints it");
    this.#keys = Promise.all(texts.map((text) => readSecret(text)));
    this.#keys.catch(() => undefined); // an invalid secret is reported by the first call
    this.#toleranceSeconds = options.toleranceSeconds ?? 300;
    this.#now = options.now ?? Date.now;
  }

  /** Checks signature and timestamp of a request and returns its message. `body` must be the bytes as they arrived. */
  async verify<T = unknown>(body: string | Uint8Array | ArrayBuffer, headers: WebhookHeaders): Promise<WebhookMessage<T>> {
    const id = required(headers, "webhook-id");
    const timestamp = required(headers, "webhook-timestamp");
    const signatures = required(headers, "webhook-signature");
    const sentAt = this.#checkedTime(timestamp);
    const bytes = toBytes(body);
    const message = signedBytes(id, timestamp, bytes);
    if (!(await this.#isSigned(message, signatures))) {
      throw new WebhookVerificationError("no_matching_signature", "no signature of the request matches a secret");
    }
    return parse<T>(id, sentAt, bytes);
  }

  /** Signs a message with every secret that can sign, as a sender does; for tests. Returns the headers. */
  async sign(id: string, body: string | Uint8Array, sentAt: Date = new Date(this.#now())): Promise<Record<string, string>> {
    const timestamp = String(Math.floor(sentAt.getTime() / 1000));
    const message = signedBytes(id, timestamp, toBytes(body));
    const signatures: string[] = [];
    for (const key of await this.#keys) if (key.sign) signatures.push(`${key.version},${toBase64(await key.sign(message))}`);
    return { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures.join(" ") };
  }

  #checkedTime(text: string): Date {
    const seconds = /^[0-9]{1,12}$/.test(text) ? Number(text) : NaN;
    if (Number.isNaN(seconds)) throw new WebhookVerificationError("invalid_timestamp", "webhook-timestamp is not a number of seconds");
    const now = Math.floor(this.#now() / 1000);
    if (now - seconds > this.#toleranceSeconds) {
      throw new WebhookVerificationError("timestamp_too_old", `the message was sent ${now - seconds} s ago: a replay, or a wrong clock`);
    }
    if (seconds - now > this.#toleranceSeconds) {
      throw new WebhookVerificationError("timestamp_too_new", `the message was sent ${seconds - now} s from now: a wrong clock`);
    }
    return new Date(seconds * 1000);
  }

  async #isSigned(message: Uint8Array, header: string): Promise<boolean> {
    const keys = await this.#keys;
    for (const element of header.split(" ").filter(Boolean).slice(0, 32)) {
      const comma = element.indexOf(",");
      const signature = fromBase64(element.slice(comma + 1));
      if (comma < 0 || !signature) continue;
      for (const key of keys) {
        // Web Crypto compares HMACs in constant time.
        if (key.version === element.slice(0, comma) && (await key.verify(signature, message))) return true;
      }
    }
    return false;
  }
}

function signedBytes(id: string, timestamp: string, body: Uint8Array): Uint8Array {
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const message = new Uint8Array(head.length + body.length);
  message.set(head);
  message.set(body, head.length);
  return message;
}

function required(headers: WebhookHeaders, name: string): string {
  const value = header(headers, name)?.trim();
  if (!value) throw new WebhookVerificationError("missing_header", `the header ${name} is missing: the request is not a webhook`);
  return value;
}

function header(headers: WebhookHeaders, name: string): string | undefined {
  if (typeof headers.get === "function") return (headers.get as (name: string) => string | null).call(headers, name) ?? undefined;
  const entries = headers as Record<string, string | readonly string[] | undefined>;
  const key = name in entries ? name : Object.keys(entries).find((key) => key.toLowerCase() === name);
  const value = key === undefined ? undefined : entries[key];
  return typeof value === "string" ? value : value?.join(" ");
}

function toBytes(body: unknown): Uint8Array {
  if (typeof body === "string") return new TextEncoder().encode(body);
  if (body instanceof Uint8Array) return body;
  if (body instanceof ArrayBuffer) return new Uint8Array(body);
  throw new TypeError("verify the raw body, as text or bytes: parsed JSON cannot be verified");
}

function parse<T>(id: string, sentAt: Date, bytes: Uint8Array): WebhookMessage<T> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const { type, timestamp, data } = JSON.parse(text) as { type: string; timestamp: Time; data: T };
    return { id, type, timestamp, data, sentAt, text };
  } catch {
    throw new WebhookVerificationError("invalid_body", "the signature is genuine, but the body is not JSON");
  }
}
