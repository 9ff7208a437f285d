//! Failed broker messages come back on time, or reach a person: the broker target of Redrive.
//!
//! A [`Scheduler`] takes failed messages from the queue `retry.scheduled`, keeps each as a [`Task`] in a store, publishes it to its
//! original queue when its backoff has passed, and brings it to `manual-review.pending` when it was retried as often as it may
//! be. It is the engine with a broker as its target: each failure is an event, and one subscription publishes it.
//!
//! Four things are settled here and nowhere else:
//!
//! - what a failed message is: [`RetryMessage`], a dead letter, or something that nobody can read;
//! - which deliveries are one task, and which are another failure: the same message id and retry count are one;
//! - what goes back, and what a person sees;
//! - how a broker is spoken to: [`Transport`], with [`Rabbit`] and [`Nats`] behind it.

mod arrival;
mod aside;
mod courier;
mod death;
mod error;
pub mod header;
mod history;
mod intake;
mod metrics;
mod nats;
mod payload;
mod properties;
mod rabbit;
mod reconnect;
mod republish;
mod retry_message;
mod review;
mod review_message;
mod scheduler;
mod settings;
mod silence;
mod standing;
mod strict;
mod task;
mod transport;

pub use self::error::SchedulerError;
pub use self::history::HistoryEntry;
pub use self::metrics::{COUNTED_QUEUES, Metrics, OTHER_QUEUES, QueueMetrics};
pub use self::nats::{Nats, NatsSettings};
pub use self::payload::Payload;
pub use self::properties::{Bits, HeaderValue, Headers, Properties};
pub use self::rabbit::{Rabbit, RabbitSettings};
pub use self::retry_message::{DecodeError, LONGEST_NAME, MOST_RETRIES, RetryMessage};
pub use self::review::{InReview, Review, TaskDetail, Unreadable};
pub use self::review_message::REVIEW_MESSAGE;
pub use self::scheduler::Scheduler;
pub use self::settings::{QueueSettings, Settings};
pub use self::task::{ByHand, COURIER, Decision, Problem, ReviewReason, TASK, Task, Via, task_id};
pub use self::transport::{
    Delivery, Publication, PublishError, Receipt, Transport, TransportFuture, TransportState,
};

/// The code of the guide is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/scheduler.md")]
mod guide {}
