import type { Redrive } from "../client.js";
import { sleep, type Clock } from "../clock.js";
import { RedriveError } from "../errors.js";
import type { LeaseResults, LeasedEvent } from "../types/subscriptions.js";
import { LeaseExtender, MAX_LEASES, type SendExtend } from "./leases.js";
import type { Handler, HandlerContext, WorkerOptions, WorkerStats } from "./options.js";
import { HandlerTimeoutError, LeaseLostError, settlementOf, type Settlement } from "./outcomes.js";
import { Settler } from "./settler.js";
import { onStopSignals } from "./signals.js";

/** Problems that repeating a pull does not solve. */
const FATAL = new Set<string>([
  "not_found", "missing_scope", "token_required", "invalid_token", "invalid_request", "method_not_allowed", "cross_origin",
]);

/** Waits between failed pulls, in milliseconds: doubling. */
const FIRST_PULL_RETRY_MS = 200;
const LAST_PULL_RETRY_MS = 5000;

/** Unsettled events beyond the running ones, at which pulls wait for acks. */
const MAX_UNSETTLED = 1000;

/** Time for the last acks after a stop has waited for its handlers. */
const LAST_ACKS_TIMEOUT_MS = 2000;

/** Parallel pulls of a worker whose concurrency is larger than one pull. */
const MAX_PULLS = 4;

/** Pulls the events of a subscription and handles them, until it is stopped. `redrive.worker` starts one. */
export class Worker {
  /** Resolves when the subscription of the options is created; at once without one. Events that are published later are handled. */
  readonly ready: Promise<void>;
  /** Resolves when the worker has stopped; rejects if it cannot go on, such as without a subscription or a valid token. */
  readonly finished: Promise<void>;
  /** Name of the subscription. */
  readonly subscription: string;
  readonly #client: Redrive;
  readonly #clock: Clock;
  readonly #handler: Handler;
  readonly #options: WorkerOptions;
  readonly #concurrency: number;
  readonly #leaseMs: number;
  readonly #leases: LeaseExtender;
  readonly #settler: Settler;
  readonly #stop = new AbortController();
  readonly #abandon = new AbortController();
  readonly #jobs = new Map<LeasedEvent, Job>();
  readonly #stats: WorkerStats = { handled: 0, failed: 0, snoozed: 0, lost: 0, running: 0 };
  #unsettled = 0;
  #reserved = 0;
  #wakeups: (() => void)[] = [];

  constructor(client: Redrive, subscription: string, handler: Handler, options: WorkerOptions = {}) {
    this.#client = client;
    this.subscription = subscription;
    this.#handler = handler;
    this.#options = options;
    this.#clock = client.clock;
    this.#concurrency = Math.max(1, Math.floor(options.concurrency ?? 16));
    this.#leaseMs = options.leaseMs ?? 30_000;
    const extend: SendExtend = (leases, signal) =>
      client.subscriptions.extend(subscription, { leases, lease_ms: this.#leaseMs }, { signal });
    this.#leases = new LeaseExtender(this.#clock, this.#leaseMs, extend, (error) => this.#report(error));
    this.#settler = new Settler(
      this.#clock,
      (leases, settlement) => this.#send(leases, settlement),
      options.ackDelayMs ?? 5,
      this.#leaseMs,
      (error) => this.#report(error),
    );
    this.ready = this.#register();
    this.ready.catch(() => undefined); // `finished` rejects as well
    this.finished = this.#run();
  }

  /** Counts since the start. */
  get stats(): WorkerStats {
    return { ...this.#stats, running: this.#jobs.size };
  }

  /** Stops pulling, waits for running handlers and their acks, and resolves when all is settled. */
  stop(): Promise<void> {
    this.#stop.abort();
    return this.finished;
  }

  async #register(): Promise<void> {
    const { subscription } = this.#options;
    if (subscription) await this.#client.subscriptions.put(this.subscription, subscription);
  }

  async #run(): Promise<void> {
    const { signal, signals } = this.#options;
    const onAbort = () => this.#stop.abort();
    if (signal?.aborted) onAbort();
    signal?.addEventListener("abort", onAbort, { once: true });
    const forget = signals ? onStopSignals(onAbort) : () => undefined;
    this.#stop.signal.addEventListener("abort", () => this.#wake(), { once: true });
    try {
      await this.ready;
      const pulls = Math.min(MAX_PULLS, Math.ceil(this.#concurrency / MAX_LEASES));
      await Promise.all(Array.from({ length: pulls }, () => this.#pullUntilStopped()));
    } catch (error) {
      this.#report(error);
      throw error;
    } finally {
      this.#stop.abort();
      await this.#drain();
      signal?.removeEventListener("abort", onAbort);
      forget();
    }
  }

  get #isStopping(): boolean {
    return this.#stop.signal.aborted;
  }

  async #pullUntilStopped(): Promise<void> {
    let retryMs = FIRST_PULL_RETRY_MS;
    while (!this.#isStopping) {
      const max = Math.min(MAX_LEASES, this.#concurrency - this.#jobs.size - this.#reserved);
      if (max < 1 || this.#unsettled >= MAX_UNSETTLED + this.#concurrency) {
        await new Promise<void>((resolve) => this.#wakeups.push(resolve));
        continue;
      }
      this.#reserved += max;
      try {
        const isEmptyTooSoon = await this.#pull(max);
        if (!isEmptyTooSoon) retryMs = FIRST_PULL_RETRY_MS;
        else await this.#pause(FIRST_PULL_RETRY_MS);
      } catch (error) {
        if (this.#isStopping) return;
        if (error instanceof RedriveError && FATAL.has(error.code)) {
          this.#stop.abort();
          throw error;
        }
        this.#report(error);
        await this.#pause(Math.max(retryMs, (error as RedriveError).retryAfterMs ?? 0));
        retryMs = Math.min(LAST_PULL_RETRY_MS, retryMs * 2);
      } finally {
        this.#reserved -= max;
        this.#wake();
      }
    }
  }

  /** Pulls once and starts the handlers. Returns whether the answer was empty although there was time to wait. */
  async #pull(max: number): Promise<boolean> {
    const wait = this.#options.waitMs ?? 20_000;
    const startedAt = this.#clock.now();
    const how = { max, wait_ms: wait, lease_ms: this.#leaseMs };
    const events = await this.#client.subscriptions.pull(this.subscription, how, { signal: this.#stop.signal });
    for (const event of events) this.#begin(event);
    return events.length === 0 && this.#clock.now() - startedAt < wait / 2;
  }

  #pause(ms: number): Promise<void> {
    return sleep(this.#clock, ms, this.#stop.signal).catch(() => undefined);
  }

  #begin(event: LeasedEvent): void {
    const controller = new AbortController();
    const job: Job = { abort: (reason) => controller.abort(reason), isOver: false };
    this.#jobs.set(event, job);
    this.#unsettled += 1;
    this.#leases.add(event.lease, (by) => {
      if (job.isOver) return; // an extension that passed the ack on its way: the response to the ack decides
      // Without the server's word the ack is sent all the same: the lease may have been extended.
      if (by === "server") {
        this.#stats.lost += 1;
        job.isLost = true;
      }
      job.abort(new LeaseLostError("another consumer may have the event: its lease has ended"));
    });
    void this.#handle(event, job, controller.signal);
  }

  async #handle(event: LeasedEvent, job: Job, signal: AbortSignal): Promise<void> {
    let settlement: Settlement = { kind: "ack" };
    try {
      await this.#runHandler(event, job, signal);
    } catch (error) {
      settlement = this.#settlementOf(error, event, job);
    }
    await this.#settle(event, job, settlement);
  }

  #settlementOf(error: unknown, event: LeasedEvent, job: Job): Settlement {
    const { onFailure, retryDelayMs } = this.#options;
    try {
      if (!job.isOver) onFailure?.(error, event);
      return settlementOf(error, event, retryDelayMs);
    } catch (callbackError) {
      this.#report(callbackError);
      return settlementOf(error, event);
    }
  }

  async #runHandler(event: LeasedEvent, job: Job, signal: AbortSignal): Promise<void> {
    const { timeoutMs, trace } = this.#options;
    const { traceparent, tracestate } = event.metadata;
    const context: HandlerContext = { signal, subscription: this.subscription, traceparent };
    const run = async () => void (await this.#handler(event, context));
    const carrier = { ...(traceparent === undefined ? {} : { traceparent }), ...(tracestate === undefined ? {} : { tracestate }) };
    const running = trace ? trace(carrier, run, event) : run();
    if (timeoutMs === undefined) return running;
    let timer: unknown;
    const timeout = new Promise<never>((_, reject) => {
      timer = this.#clock.setTimeout(() => {
        const error = new HandlerTimeoutError(`the handler took longer than ${timeoutMs} ms`);
        job.abort(error);
        reject(error);
      }, timeoutMs);
    });
    return Promise.race([running, timeout]).finally(() => this.#clock.clearTimeout(timer));
  }

  /** Settles an event once: by its handler's result, or by the end of a stop that did not wait for it. */
  async #settle(event: LeasedEvent, job: Job, settlement: Settlement): Promise<void> {
    if (job.isOver) return;
    job.isOver = true;
    this.#jobs.delete(event);
    this.#wake();
    const settled = job.isLost ? undefined : await this.#settler.settle(event.lease, settlement);
    this.#leases.remove(event.lease);
    this.#unsettled -= 1;
    if (settled === "lost" && !job.isLost) this.#stats.lost += 1;
    else if (settled === "done" && settlement.kind === "ack") this.#stats.handled += 1;
    else if (settled === "done") this.#stats[settlement.kind === "nack" && settlement.outcome === "snooze" ? "snoozed" : "failed"] += 1;
    this.#wake();
  }

  #send(leases: string[], settlement: Settlement): Promise<LeaseResults> {
    const { signal } = this.#abandon;
    if (settlement.kind === "ack") return this.#client.subscriptions.ack(this.subscription, { leases }, { signal });
    const { kind: _, ...nack } = settlement;
    return this.#client.subscriptions.nack(this.subscription, { leases, ...nack }, { signal });
  }

  /** Waits for running handlers, snoozes the events of those that do not end in time, and sends the last acks. */
  async #drain(): Promise<void> {
    let timer = this.#clock.setTimeout(() => {
      for (const [event, job] of [...this.#jobs]) {
        job.abort(new Error("the worker stops"));
        void this.#settle(event, job, { kind: "nack", outcome: "snooze", delay_ms: 1, reason: "the worker stopped" });
      }
      timer = this.#clock.setTimeout(() => this.#abandon.abort(new Error("the worker stops")), LAST_ACKS_TIMEOUT_MS);
    }, this.#options.stopTimeoutMs ?? 30_000);
    while (this.#jobs.size > 0 || this.#unsettled > 0) {
      if (this.#jobs.size === 0) this.#settler.flush();
      await new Promise<void>((resolve) => this.#wakeups.push(resolve));
    }
    this.#clock.clearTimeout(timer);
    this.#leases.close();
  }

  #wake(): void {
    for (const wakeup of this.#wakeups.splice(0)) wakeup();
  }

  #report(error: unknown): void {
    try {
      this.#options.onError?.(error);
    } catch {
      // An error of the error handler has no receiver.
    }
  }
}

interface Job {
  abort: (reason?: unknown) => void;
  /** The event was settled, or its result does not matter any more. */
  isOver: boolean;
  /** The server refused to extend the lease. */
  isLost?: boolean;
}
