//! The error type of the scheduler.

use std::path::PathBuf;

use redrive::BusError;
use redrive_retry::policy::PolicyError;
use redrive_store::{EventId, StoreError};

/// An operation of the scheduler failed. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The delays are inconsistent.
    #[error("the delays are inconsistent: {0}")]
    Settings(#[from] PolicyError),
    /// A queue name is invalid, or both queues have the same name.
    #[error("{setting} is {name:?}: use 1 to 255 bytes, and another name than for the other queue")]
    QueueName {
        /// Name of the setting.
        setting: &'static str,
        /// The invalid name.
        name: String,
    },
    /// The RabbitMQ URL is invalid.
    #[error("not the address of a RabbitMQ server: {why}; write amqp://user:password@host:5672/vhost")]
    Address {
        /// The reason, without the password.
        why: String,
    },
    /// The NATS URL is invalid.
    #[error(
        "not the address of a NATS server: {why}; write nats://user:password@host:4222 or tls://…, several with commas between"
    )]
    NatsAddress {
        /// The reason, without the password.
        why: String,
    },
    /// The credentials file cannot be used.
    #[error("the credentials file {path:?} cannot be used: {why}")]
    Credentials {
        /// The file's path.
        path: PathBuf,
        /// The reason, without the file's content.
        why: String,
    },
    /// The name is not valid in NATS.
    #[error("{setting} is {name:?}, which is not a valid {kind} in NATS: {rule}")]
    NatsName {
        /// Name of the setting.
        setting: &'static str,
        /// The invalid name.
        name: String,
        /// Kind of name.
        kind: &'static str,
        /// Rule for such names.
        rule: &'static str,
    },
    /// The bus failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No task has this id.
    #[error("there is no retry task {id}")]
    NoSuchTask {
        /// The task.
        id: EventId,
    },
    /// The task is not in review.
    #[error("retry task {id} is not in review: it is {status}")]
    NotInReview {
        /// The task.
        id: EventId,
        /// The task's status.
        status: &'static str,
    },
    /// The original queue is unknown.
    #[error("the original queue of {id} is unknown ({why}): name a queue")]
    NoQueue {
        /// The task.
        id: EventId,
        /// The reason.
        why: String,
    },
    /// The stored payload is not a task.
    #[error(
        "the payload of {id} is not a retry task: {why}; it was edited, or a newer release wrote it: \
         use that release, or discard the task"
    )]
    Unreadable {
        /// The task.
        id: EventId,
        /// The reason.
        why: String,
    },
}
