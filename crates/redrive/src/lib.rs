//! A durable event bus in process: publish, subscribe, retry, dead-letter. On SQLite, without a broker.
//!
//! > A publish that returned `Ok` is on stable storage. It survives `kill -9` and power loss on storage that honours
//! > flush. It is then handled by every matching subscription at least once, or it is in the dead-letter queue with
//! > every error of every attempt. Nothing is ever dropped in silence.
//!
//! Begin with [`EventBus`].

mod builder;
mod bus;
mod core;
mod dispatcher;
mod dlq;
mod error;
mod event;
mod handler;
mod metrics;
mod pattern;
mod payload;
mod publish;
mod subscription;
mod waiters;

pub use redrive_retry::{
    BoxError, BreakerConfig, ClassifyError, ClassifyResult, Clock, Failure, Jitter, RetryOverride,
    RetryPolicy, Timestamp, VirtualTime,
};
pub use redrive_store::{
    DeadLetter, DlqFilter, DlqGroup, DlqPage, Durability, EventDetail, EventFilter, EventId, EventPage,
    EventStatus, EventType, ModelError, NewEvent, Stats, Store, StoreError, SubscriptionName, sqlite,
};

pub use crate::builder::EventBusBuilder;
pub use crate::bus::EventBus;
pub use crate::core::{Tracking, Unmatched};
pub use crate::dlq::{DlqInspector, RetryReport};
pub use crate::error::{BusError, EventBusShutdownError, InvalidPayloadError};
pub use crate::event::Event;
pub use crate::handler::{BoxFuture, Handler, blocking};
pub use crate::metrics::{Metrics, TypeMetrics};
pub use crate::pattern::{Pattern, PatternError};
pub use crate::payload::EventPayload;
pub use crate::publish::Publish;
pub use crate::subscription::Subscribe;
