//! One small program per feature. This library is empty; the programs are the examples of this package.
//!
//! A guarded call:
//!
//! | program | shows |
//! |---|---|
//! | `guard_http_call` | a guarded call with classes of errors, `Retry-After`, circuit breaker and budget |
//! | `idempotent_payment` | ten concurrent callers, one charge |
//! | `custom_category` | a category of your own, errors that know their class, a policy from configuration |
//! | `audit_and_verify` | an audit log as JSON lines, every decision in it recomputed |
//!
//! The event bus:
//!
//! | program | shows |
//! |---|---|
//! | `event_bus` | publish, subscribe, start, shut down |
//! | `typed_events` | payloads with a type of their own, and what happens to others |
//! | `batch_and_own_ids` | many events at once, and the same event once |
//! | `scheduled_events` | events for later, across a restart |
//! | `transactional_publish` | an event that exists exactly if your own change does |
//! | `retry_and_dead_letter` | what is tried again, what is not, and where it ends |
//! | `circuit_breaker` | one subscription is down, the others go on |
//! | `per_subscription` | each subscription retried, given up and sent back on its own |
//! | `inspect_dead_letters` | groups, list, edit, export and purge beside a running bus |
//! | `middleware` | something of yours around every handler |
//! | `metrics_and_tracing` | counters, latencies, spans and the trace context |
//! | `testing_handlers` | your handlers on virtual time |
//!
//! `cargo run -p redrive-examples --example event_bus`

/// The code of the guide, compiled by `cargo test --doc`.
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
    #[doc = include_str!("../docs/guide/middleware.md")]
    struct Middleware;
    #[doc = include_str!("../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guide/postgres.md")]
    struct Postgres;
}
