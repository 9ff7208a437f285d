import type { LeasedEvent, PutSubscription } from "../types/subscriptions.js";

/** Handles one event. The event is acked when the promise resolves, and retried when it rejects. */
export type Handler<T = unknown> = (event: LeasedEvent<T>, context: HandlerContext) => unknown;

/** Second argument of a handler. */
export interface HandlerContext {
  /** Aborts after the handler's timeout, when the lease is lost, or when a stop takes too long. */
  readonly signal: AbortSignal;
  /** Name of the subscription. */
  readonly subscription: string;
  /** Trace context of the publisher (W3C), if the event carries one. */
  readonly traceparent: string | undefined;
}

/** Texts that carry a trace context, as OpenTelemetry's propagators read them. */
export interface TraceCarrier {
  traceparent?: string;
  tracestate?: string;
}

/** Options of a worker. */
export interface WorkerOptions {
  /** Handlers that run at a time; 16 by default. */
  concurrency?: number | undefined;
  /** Lease of each event; extended as long as its handler runs. 30 s by default. */
  leaseMs?: number | undefined;
  /** Longest wait of one pull for an event; 20 s by default, at most 30 s. */
  waitMs?: number | undefined;
  /** Time limit of a handler; none by default. */
  timeoutMs?: number | undefined;
  /** Time in which acks are collected for one request; 5 ms by default. */
  ackDelayMs?: number | undefined;
  /** Shortest wait before the next attempt after this error. By default the retry policy decides alone. */
  retryDelayMs?: ((event: LeasedEvent, error: unknown) => number | undefined) | undefined;
  /** Creates or changes the subscription before the first pull; needs a token with the scope `admin`. */
  subscription?: PutSubscription | undefined;
  /** Stops the worker when it aborts. */
  signal?: AbortSignal | undefined;
  /** Stops the worker on SIGTERM and SIGINT; a second signal ends the process. */
  signals?: boolean | undefined;
  /** Time that a stop waits for running handlers; 30 s by default. Then their events are snoozed, and other consumers get them. */
  stopTimeoutMs?: number | undefined;
  /** Runs each handler in the trace context of its event, for example with `context.with` of OpenTelemetry. */
  trace?: ((carrier: TraceCarrier, run: () => Promise<void>, event: LeasedEvent) => Promise<void>) | undefined;
  /** Gets every error that no handler sees: of pulls, acks and extensions. The worker goes on. */
  onError?: ((error: unknown) => void) | undefined;
  /** Gets every error of a handler, before the event is settled. */
  onFailure?: ((error: unknown, event: LeasedEvent) => void) | undefined;
}

/** Counts of a worker since its start. */
export interface WorkerStats {
  /** Acked events. */
  handled: number;
  /** Failed attempts that the server recorded. */
  failed: number;
  /** Snoozed events. */
  snoozed: number;
  /** Events whose lease had ended before they were settled: they are delivered again, unless only the response to an ack was lost. */
  lost: number;
  /** Handlers that run now. */
  running: number;
}
