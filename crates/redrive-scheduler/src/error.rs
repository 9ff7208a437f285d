//! What can go wrong with the scheduler.

use std::path::PathBuf;

use redrive::BusError;
use redrive_retry::PolicyError;
use redrive_store::{EventId, StoreError};

/// What can go wrong with the scheduler. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The settings contradict each other.
    #[error("the delays cannot be as they are set: {0}")]
    Settings(#[from] PolicyError),
    /// The names of queues.
    #[error("{setting} is {name:?}: use 1 to 255 bytes, and another name than for the other queue")]
    QueueName {
        /// Which setting.
        setting: &'static str,
        /// What was given.
        name: String,
    },
    /// Not the address of a broker.
    #[error("not the address of a RabbitMQ server: {why}; write amqp://user:password@host:5672/vhost")]
    Address {
        /// What is wrong with it, without the password.
        why: String,
    },
    /// Not the address of a NATS server.
    #[error(
        "not the address of a NATS server: {why}; write nats://user:password@host:4222 or tls://…, several with commas between"
    )]
    NatsAddress {
        /// What is wrong with it, without the password.
        why: String,
    },
    /// A file to sign in with.
    #[error("the credentials file {path:?} cannot be used: {why}")]
    Credentials {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, without what is in it.
        why: String,
    },
    /// A name that NATS does not take.
    #[error("{setting} is {name:?}, which is no {kind} of NATS: {rule}")]
    NatsName {
        /// Which setting.
        setting: &'static str,
        /// What was given.
        name: String,
        /// What it should be.
        kind: &'static str,
        /// How such a name looks.
        rule: &'static str,
    },
    /// The bus refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such task.
    #[error("there is no retry task {id}")]
    NoSuchTask {
        /// Which.
        id: EventId,
    },
    /// It is not in review.
    #[error("retry task {id} is not in review: it is {status}")]
    NotInReview {
        /// Which.
        id: EventId,
        /// What it is.
        status: &'static str,
    },
    /// It is not known where it should go.
    #[error("it is not known to which queue {id} belongs ({why}): name one")]
    NoQueue {
        /// Which.
        id: EventId,
        /// Why not.
        why: String,
    },
    /// What is stored is not a task.
    #[error(
        "what is stored as {id} cannot be read as a retry task: {why}; it was changed by hand, or a newer release has written it: \
         use that one, or discard it"
    )]
    Unreadable {
        /// Which.
        id: EventId,
        /// What is wrong with it.
        why: String,
    },
}
