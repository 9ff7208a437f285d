/** Client of the Redrive event engine: publish, workers, webhooks, dead letters. */
export { Redrive, type RedriveOptions } from "./client.js";
export type { Clock } from "./clock.js";
export { InvalidPayloadError, NetworkError, RedriveError, type ItemError, type ProblemCode } from "./errors.js";
export { EventBus, EventBusShutdownError, type EventBusOptions, type SubscribeOptions } from "./eventbus.js";
export type { Fetch, FetchInit, FetchResponse } from "./http.js";
export { idempotencyKey, type IdempotencyScope } from "./idempotency.js";
export { RawJson, payloadText } from "./json.js";
export { Paged } from "./pages.js";
export type { RetryOptions } from "./retries.js";
export type * from "./types/index.js";
export {
  InvalidSecretError,
  Webhook,
  WebhookVerificationError,
  type WebhookHeaders,
  type WebhookMessage,
  type WebhookOptions,
  type WebhookProblem,
} from "./webhook.js";
export * from "./worker/index.js";
