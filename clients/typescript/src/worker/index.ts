export type { Handler, HandlerContext, TraceCarrier, WorkerOptions, WorkerStats } from "./options.js";
export { HandlerTimeoutError, LeaseLostError, PermanentError, RetryAfter, Snooze } from "./outcomes.js";
export { Worker } from "./worker.js";
