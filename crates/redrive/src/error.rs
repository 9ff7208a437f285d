//! Errors of the bus.

use redrive_retry::budget::BudgetError;
use redrive_retry::policy::PolicyError;
use redrive_store::{EventId, ModelError, StoreError};

use crate::pattern::PatternError;

/// An error of the bus. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The bus was shut down.
    #[error(transparent)]
    Shutdown(#[from] EventBusShutdownError),
    /// The payload is not JSON.
    #[error(transparent)]
    InvalidPayload(#[from] InvalidPayloadError),
    /// The bus was shut down, or its store stopped, while the event was in flight. It is on disk and continues at the next start.
    #[error(
        "event {id} is stored, but the bus was shut down or its store stopped before it was finished; it continues at the next start"
    )]
    NotFinished {
        /// The event.
        id: EventId,
    },
    /// The bus is not started, so a publish would never finish.
    #[error(
        "the bus is not started, so the event would never be finished: call start() first, or publish with enqueue()"
    )]
    NotStarted,
    /// The program was built without the feature `postgres`.
    #[error(
        "this program was built without PostgreSQL: enable the feature `postgres` of the crate `redrive`"
    )]
    NoPostgres,
    /// A subscription with this name is registered.
    #[error("there is already a subscription named {name:?}: give this one another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The pattern is invalid.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The event type, id or name is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The retry policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The retry budget is invalid.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The bus was shut down: nothing can be published or subscribed any more.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event bus is shut down: open a new one")]
pub struct EventBusShutdownError;

/// A payload that cannot be stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload cannot be stored as JSON: {why}")]
pub struct InvalidPayloadError {
    pub(crate) why: String,
}
