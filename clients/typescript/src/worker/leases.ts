import type { Clock } from "../clock.js";
import type { LeaseResults } from "../types/subscriptions.js";

/** Maximum number of leases of one request. */
export const MAX_LEASES = 100;

/** Sends one request that extends leases. */
export type SendExtend = (leases: string[], signal: AbortSignal) => Promise<LeaseResults>;

interface TrackedLease {
  extendedAt: number;
  isExtending: boolean;
  onLost: (by: LostBy) => void;
}

/** Evidence of a lost lease: the server's answer, or the time that has passed without an answer. */
export type LostBy = "server" | "time";

/** Extends the leases of running handlers, in batches, when a third of their time has passed. */
export class LeaseExtender {
  readonly #clock: Clock;
  readonly #leaseMs: number;
  readonly #send: SendExtend;
  readonly #onError: (error: unknown) => void;
  readonly #leases = new Map<string, TrackedLease>();
  #timer: unknown;

  constructor(clock: Clock, leaseMs: number, send: SendExtend, onError: (error: unknown) => void) {
    this.#clock = clock;
    this.#leaseMs = leaseMs;
    this.#send = send;
    this.#onError = onError;
  }

  /** Extends a lease from now on. `onLost` is called when it has ended. */
  add(lease: string, onLost: (by: LostBy) => void): void {
    this.#leases.set(lease, { extendedAt: this.#clock.now(), isExtending: false, onLost });
    this.#schedule();
  }

  /** Stops extending a lease. */
  remove(lease: string): void {
    this.#leases.delete(lease);
  }

  /** Stops extending all leases. */
  close(): void {
    this.#leases.clear();
    this.#clock.clearTimeout(this.#timer);
  }

  #schedule(): void {
    this.#timer ??= this.#clock.setTimeout(() => this.#tick(), this.#leaseMs / 6);
  }

  #tick(): void {
    this.#timer = undefined;
    const now = this.#clock.now();
    const due: string[] = [];
    for (const [lease, tracked] of this.#leases) {
      const age = now - tracked.extendedAt;
      if (age >= this.#leaseMs) this.#lose(lease, "time");
      else if (age >= this.#leaseMs / 3 && !tracked.isExtending) due.push(lease);
    }
    for (let at = 0; at < due.length; at += MAX_LEASES) void this.#extend(due.slice(at, at + MAX_LEASES), now);
    if (this.#leases.size > 0) this.#schedule();
  }

  async #extend(leases: string[], now: number): Promise<void> {
    const tracked = leases.flatMap((lease) => this.#leases.get(lease) ?? []);
    for (const one of tracked) one.isExtending = true;
    // A request that hangs is abandoned in time for another one.
    const hung = new AbortController();
    const timer = this.#clock.setTimeout(() => hung.abort(new Error("extending leases took too long")), this.#leaseMs / 3);
    try {
      const { lost } = await this.#send(leases, hung.signal);
      for (const one of tracked) one.extendedAt = now;
      for (const lease of lost) this.#lose(lease, "server");
    } catch (error) {
      this.#onError(error); // the next tick sends another request
    } finally {
      this.#clock.clearTimeout(timer);
      for (const one of tracked) one.isExtending = false;
    }
  }

  #lose(lease: string, by: LostBy): void {
    const tracked = this.#leases.get(lease);
    this.#leases.delete(lease);
    tracked?.onLost(by);
  }
}
