import type { Clock } from "../clock.js";

interface Timer {
  at: number;
  number: number;
  action: () => void;
}

/**
 * Time that a test advances by hand. Pass it as `clock` to a client: retries, workers and leases wait for it.
 *
 * ```ts
 * const clock = new FakeClock();
 * const redrive = new Redrive({ url, clock });
 * await clock.advance(60_000);
 * ```
 */
export class FakeClock implements Clock {
  #now: number;
  #timers: Timer[] = [];
  #count = 0;

  /** Starts at 2026-01-01T00:00:00Z, or at the given time. */
  constructor(start: Date | number = 1_767_225_600_000) {
    this.#now = Number(start);
  }

  now(): number {
    return this.#now;
  }

  setTimeout(action: () => void, ms: number): unknown {
    this.#count += 1;
    const timer = { at: this.#now + Math.max(0, ms), number: this.#count, action };
    this.#timers.push(timer);
    return timer;
  }

  clearTimeout(handle: unknown): void {
    this.#timers = this.#timers.filter((timer) => timer !== handle);
  }

  /** Number of timers that wait. */
  get waiting(): number {
    return this.#timers.length;
  }

  /** Moves the time forward and runs every timer that becomes due, in order, with the work that it causes. */
  async advance(ms: number): Promise<void> {
    const end = this.#now + ms;
    await this.settle();
    for (let next = this.#next(end); next; next = this.#next(end)) {
      this.clearTimeout(next);
      this.#now = Math.max(this.#now, next.at);
      next.action();
      await this.settle();
    }
    this.#now = end;
  }

  /** Lets work go on that waits for no timer: promises, and responses that are ready. */
  async settle(): Promise<void> {
    for (let turn = 0; turn < 5; turn += 1) await new Promise<void>((resolve) => setTimeout(resolve, 0));
  }

  #next(end: number): Timer | undefined {
    const due = this.#timers.filter((timer) => timer.at <= end);
    return due.sort((a, b) => a.at - b.at || a.number - b.number)[0];
  }
}
