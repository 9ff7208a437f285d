//! One small program per feature. This library is empty; the programs are the examples of this package.
//!
//! Guarded calls:
//!
//! | program | shows |
//! |---|---|
//! | `retry_ext` | retry a function in one line |
//! | `guard_http_call` | a managed call with error classes, `Retry-After`, circuit breaker and budget |
//! | `idempotent_payment` | ten concurrent callers, one charge |
//! | `custom_category` | custom category, errors with a class, policy from configuration |
//! | `audit_and_verify` | audit log as JSON lines, verification of every decision |
//!
//! The event bus:
//!
//! | program | shows |
//! |---|---|
//! | `event_bus` | publish, subscribe, start, shut down |
//! | `typed_events` | typed payloads, and the handling of malformed ones |
//! | `batch_and_own_ids` | atomic batch publish and event ids chosen by the publisher |
//! | `scheduled_events` | scheduled events across a restart |
//! | `transactional_publish` | publish inside the program's own transaction |
//! | `retry_and_dead_letter` | retries, permanent errors, `Retry-After` and the dead-letter queue |
//! | `circuit_breaker` | circuit breaker of one subscription; other subscriptions proceed |
//! | `per_subscription` | each subscription retried, dead-lettered and redriven on its own |
//! | `inspect_dead_letters` | groups, list, edit, export and purge beside a running bus |
//! | `middleware` | middleware around handlers |
//! | `metrics_and_tracing` | counters, latencies, spans and the trace context |
//! | `testing_handlers` | tests of handlers on virtual time |
//!
//! `cargo run -p redrive-examples --example event_bus`

/// Code of the guide, compiled by `cargo test --doc`.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../docs/guide/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("../docs/guide/publishing.md")]
    struct Publishing;
    #[doc = include_str!("../docs/guide/subscribing.md")]
    struct Subscribing;
    #[doc = include_str!("../docs/guide/retries.md")]
    struct Retries;
    #[doc = include_str!("../docs/guide/circuit-breakers.md")]
    struct CircuitBreakers;
    #[doc = include_str!("../docs/guide/retry-budgets.md")]
    struct RetryBudgets;
    #[doc = include_str!("../docs/guide/limits.md")]
    struct Limits;
    #[doc = include_str!("../docs/guide/snooze.md")]
    struct Snooze;
    #[doc = include_str!("../docs/guide/idempotency.md")]
    struct Idempotency;
    #[doc = include_str!("../docs/guide/tracking.md")]
    struct Tracking;
    #[doc = include_str!("../docs/guide/dead-letter-queue.md")]
    struct DeadLetterQueue;
    #[doc = include_str!("../docs/guide/transactional-publish.md")]
    struct TransactionalPublish;
    #[doc = include_str!("../docs/guide/crash-recovery.md")]
    struct CrashRecovery;
    #[doc = include_str!("../docs/guide/shutdown.md")]
    struct Shutdown;
    #[doc = include_str!("../docs/guide/durability.md")]
    struct Durability;
    #[doc = include_str!("../docs/guide/observability.md")]
    struct Observability;
    #[doc = include_str!("../docs/guide/retry-operations.md")]
    struct RetryOperations;
    #[doc = include_str!("../docs/guide/middleware.md")]
    struct Middleware;
    #[doc = include_str!("../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guide/postgres.md")]
    struct Postgres;
    #[doc = include_str!("../docs/guide/rust-client.md")]
    struct RustClient;
}
