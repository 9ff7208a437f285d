/** Source of time and timers. Tests pass a fake one. */
export interface Clock {
  /** Milliseconds since the Unix epoch. */
  now(): number;
  /** Calls `action` once after `ms` milliseconds and returns a handle for {@link clearTimeout}. */
  setTimeout(action: () => void, ms: number): unknown;
  /** Cancels a timer. */
  clearTimeout(handle: unknown): void;
}

/** Real time. Its timers keep the process alive, as those of the platform do. */
export const systemClock: Clock = {
  now: () => Date.now(),
  setTimeout: (action, ms) => setTimeout(action, ms),
  clearTimeout: (handle) => clearTimeout(handle as ReturnType<typeof setTimeout>),
};

/** Waits `ms` milliseconds; rejects with the reason of `signal` when it aborts. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const onAbort = () => {
      clock.clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = clock.setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** A signal that aborts with any of its parents. Call `release` when the work is over, so that long-lived parents forget it. */
export interface LinkedSignal {
  readonly signal: AbortSignal;
  abort(reason?: unknown): void;
  release(): void;
}

/** Links a new signal to its parents. `AbortSignal.any` does the same, but Node 18 lacks it. */
export function linkSignals(parents: readonly (AbortSignal | undefined)[]): LinkedSignal {
  const controller = new AbortController();
  const links: (() => void)[] = [];
  for (const parent of parents) {
    if (!parent) continue;
    if (parent.aborted) {
      controller.abort(parent.reason);
      break;
    }
    const onAbort = () => controller.abort(parent.reason);
    parent.addEventListener("abort", onAbort, { once: true });
    links.push(() => parent.removeEventListener("abort", onAbort));
  }
  return {
    signal: controller.signal,
    abort: (reason) => controller.abort(reason),
    release: () => links.splice(0).forEach((unlink) => unlink()),
  };
}
