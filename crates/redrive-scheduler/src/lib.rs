//! Retry scheduler for RabbitMQ and NATS: delays failed messages, republishes them, and hands exhausted ones to manual review.
//!
//! One failed message, step by step:
//!
//! 1. **Receive**: a [`Transport`] ([`Rabbit`] or [`Nats`]) delivers it from the queue `retry.scheduled`.
//! 2. **Classify**: it is a [`RetryMessage`], a dead letter of its original queue, or undecodable. Either way it becomes a [`Task`].
//! 3. **Store**: the task is an event of the bus, due when the backoff has passed. The event id is derived from message id, queue and
//!    retry count, so a redelivery is stored once.
//! 4. **Ack**: only then the scheduler acks the delivery, and the broker drops its copy.
//! 5. **Republish**: when the task is due, the [`REPUBLISHER`] subscription publishes the message to its original queue and waits for
//!    the publisher confirm. A message without retries left, an undecodable or an unroutable one goes to `manual-review.pending`.
//! 6. **Settle**: the bus marks the task done, retries the publication, or dead-letters the task. Dead-lettered tasks are those in
//!    review; [`Review`] lists, releases and discards them.

mod classify;
mod confirm_stall;
mod death;
mod error;
pub mod header;
mod history;
mod intake;
mod metrics;
mod nats;
mod oversize;
mod payload;
mod properties;
mod rabbit;
mod reconnect;
mod republication;
mod republisher;
mod retry_message;
mod review;
mod review_message;
mod scheduler;
mod settings;
mod strict;
mod task;
mod task_state;
mod transport;

pub use self::error::SchedulerError;
pub use self::history::HistoryEntry;
pub use self::metrics::{MAX_QUEUE_LABELS, Metrics, OTHER_QUEUES, QueueMetrics};
pub use self::nats::{Nats, NatsSettings};
pub use self::payload::Payload;
pub use self::properties::{Bits, HeaderValue, Headers, Properties};
pub use self::rabbit::{Rabbit, RabbitSettings};
pub use self::retry_message::{DecodeError, MAX_NAME_BYTES, MAX_RETRIES, RetryMessage};
pub use self::review::{InReview, Review, ReviewFilter, ReviewPage, TaskDetail, Unreadable};
pub use self::review_message::REVIEW_MESSAGE;
pub use self::scheduler::Scheduler;
pub use self::settings::{QueueSettings, Settings};
pub use self::task::{ByHand, Decision, Problem, REPUBLISHER, ReviewReason, TASK, Task, Via, task_id};
pub use self::transport::{
    Delivery, Publication, PublishError, Receipt, Transport, TransportFuture, TransportState,
};

/// Compiles the code of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/scheduler.md")]
mod guide {}
