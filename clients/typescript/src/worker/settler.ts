import { sleep, type Clock } from "../clock.js";
import { RedriveError } from "../errors.js";
import type { LeaseResults } from "../types/subscriptions.js";
import { MAX_LEASES } from "./leases.js";
import type { Settlement } from "./outcomes.js";

/** Delay before a batch is sent again, after the retries of the client are exhausted. */
const SETTLE_RETRY_DELAY_MS = 500;

/** Result of a settlement: stored, refused because the lease had ended, or not known. */
export type Settled = "done" | "lost" | "unknown";

interface Batch {
  settlement: Settlement;
  leases: Map<string, (settled: Settled) => void>;
  timer: unknown;
}

/** Settles events in batches: those that end the same way within a few milliseconds share a request. */
export class Settler {
  readonly #clock: Clock;
  readonly #send: (leases: string[], settlement: Settlement) => Promise<LeaseResults>;
  readonly #delayMs: number;
  readonly #timeoutMs: number;
  readonly #onError: (error: unknown) => void;
  readonly #open = new Map<string, Batch>();

  /** After `timeoutMs` a settlement is not sent again: after the length of a lease it would be refused. */
  constructor(
    clock: Clock,
    send: (leases: string[], settlement: Settlement) => Promise<LeaseResults>,
    delayMs: number,
    timeoutMs: number,
    onError: (error: unknown) => void,
  ) {
    this.#clock = clock;
    this.#send = send;
    this.#delayMs = delayMs;
    this.#timeoutMs = timeoutMs;
    this.#onError = onError;
  }

  /** Settles one lease with the next batch. */
  settle(lease: string, settlement: Settlement): Promise<Settled> {
    const key = settlement.kind === "ack" ? "ack" : JSON.stringify(settlement);
    let batch = this.#open.get(key);
    if (!batch) {
      const timer = this.#clock.setTimeout(() => void this.#flush(key), this.#delayMs);
      batch = { settlement, leases: new Map(), timer };
      this.#open.set(key, batch);
    }
    const { leases } = batch;
    const settled = new Promise<Settled>((resolve) => leases.set(lease, resolve));
    if (leases.size >= MAX_LEASES) void this.#flush(key);
    return settled;
  }

  /** Sends all open batches at once. */
  flush(): void {
    for (const key of [...this.#open.keys()]) void this.#flush(key);
  }

  async #flush(key: string): Promise<void> {
    const batch = this.#open.get(key);
    if (!batch) return;
    this.#open.delete(key);
    this.#clock.clearTimeout(batch.timer);
    const leases = [...batch.leases.keys()];
    const lost = await this.#settle(leases, batch.settlement);
    for (const [lease, resolve] of batch.leases) resolve(lost === undefined ? "unknown" : lost.has(lease) ? "lost" : "done");
  }

  /** Returns the leases that were lost; `undefined` if that is not known. */
  async #settle(leases: string[], settlement: Settlement): Promise<Set<string> | undefined> {
    const deadline = this.#clock.now() + this.#timeoutMs;
    for (;;) {
      try {
        return new Set((await this.#send(leases, settlement)).lost);
      } catch (error) {
        this.#onError(error);
        // A stop that is over aborts the request: that is not temporary.
        const isTemporary = error instanceof RedriveError && (error.status === 0 || error.status === 429 || error.status >= 500);
        if (!isTemporary || this.#clock.now() + SETTLE_RETRY_DELAY_MS > deadline) return undefined;
        await sleep(this.#clock, SETTLE_RETRY_DELAY_MS);
      }
    }
  }
}
