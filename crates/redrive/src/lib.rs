//! A durable event bus in process: publish, subscribe, retry, dead-letter. On SQLite, without a broker.
//!
//! > A publish that returned `Ok` is on stable storage. It survives `kill -9` and power loss on storage that honours
//! > flush. It is then handled by every matching subscription at least once, or it is in the dead-letter queue with
//! > every error of every attempt. Nothing is ever dropped in silence.
//!
//! Begin with [`EventBus`].

mod budget;
mod builder;
mod bus;
mod circuit;
mod core;
mod dispatcher;
mod dlq;
mod error;
mod event;
mod gate;
mod handler;
#[cfg(feature = "metrics")]
mod histogram;
mod lane;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;
mod middleware;
mod not_now;
mod pattern;
mod payload;
mod publish;
mod pull;
mod roster;
mod subscription;
pub mod testing;
mod trace;
mod waiters;

pub use redrive_retry::{
    BoxError, BreakerConfig, BreakerSnapshot, BudgetConfig, BudgetError, Classify, ClassifyError,
    ClassifyResult, Clock, ErrorRule, Failure, FailureClass, Jitter, PolicyError, RetryOverride, RetryPolicy,
    Rules, Timestamp, VirtualTime, audit,
};
pub use redrive_store::{
    Appended, AttemptRow, DeadLetter, DeliveryRow, Depth, DlqCursor, DlqFilter, DlqGroup, DlqPage,
    Durability, EventDetail, EventFilter, EventId, EventPage, EventStatus, EventType, Location, Metadata,
    ModelError, NewEvent, Replayed, SqliteOptions, SqliteStore, Stats, Store, StoreError, SubscriptionName,
    SubscriptionRow, To, Unread, sqlite,
};
#[cfg(feature = "postgres")]
pub use redrive_store::{PostgresOptions, PostgresStore, postgres};

pub use crate::builder::EventBusBuilder;
pub use crate::bus::EventBus;
pub use crate::core::{Tracking, Unmatched};
pub use crate::dispatcher::Dispatcher;
pub use crate::dlq::{DlqInspector, RetryReport};
pub use crate::error::{BusError, EventBusShutdownError, InvalidPayloadError};
pub use crate::event::Event;
pub use crate::handler::{BoxFuture, Handler, blocking};
#[cfg(feature = "metrics")]
pub use crate::histogram::{Bucket, Histogram, Recorder};
pub use crate::lane::Limits;
#[cfg(feature = "metrics")]
pub use crate::metrics::{Metrics, SubscriptionMetrics, TypeMetrics};
pub use crate::middleware::{Middleware, Next};
pub use crate::not_now::NotNow;
pub use crate::pattern::{Pattern, PatternError, Patterns};
pub use crate::payload::EventPayload;
pub use crate::publish::Publish;
pub use crate::pull::{LeaseLost, LeaseToken, Leased, PullQueue};
pub use crate::subscription::{Subscribe, Subscription};
pub use crate::trace::{InvalidTraceparent, TraceContext};
