//! What can go wrong with the bus.

use redrive_retry::{BudgetError, PolicyError};
use redrive_store::{EventId, ModelError, StoreError};

use crate::pattern::PatternError;

/// What can go wrong with the bus. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The bus was shut down.
    #[error(transparent)]
    Shutdown(#[from] EventBusShutdownError),
    /// The payload is not JSON.
    #[error(transparent)]
    InvalidPayload(#[from] InvalidPayloadError),
    /// The bus was shut down or its store has stopped while the event was under way. It is on disk and goes on at the next start.
    #[error(
        "event {id} is stored, but the bus was shut down or its store stopped before it was finished; it goes on at the next start"
    )]
    NotFinished {
        /// The event.
        id: EventId,
    },
    /// Nothing is dispatched before the start.
    #[error(
        "the bus is not started, so the event would never be finished: call start() first, or publish with enqueue()"
    )]
    NotStarted,
    /// This program knows files only.
    #[error(
        "this program was built without PostgreSQL: enable the feature `postgres` of the crate `redrive`"
    )]
    NoPostgres,
    /// Two subscriptions under one name.
    #[error("there is already a subscription named {name:?}: give this one another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Not a pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// Not an event type, id or name.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Not a retry policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Not a retry budget of a subscription.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The store refused.
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
