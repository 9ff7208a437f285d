//! `/v1/diagnostics`: work that waits, for `redrive doctor`.

use serde::{Deserialize, Serialize};

use crate::client::{Client, Result};
use crate::time::Time;

/// Work that waits, as the responding process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Diagnostics {
    /// Time by which deliveries are due, to compare clocks.
    pub now: Time,
    /// Events and deliveries that have been due for more than a minute.
    pub overdue: u64,
    /// Endpoints that the responding process cannot read, and so neither lists nor serves: it lacks the key of their secrets, or they
    /// are damaged. Removed endpoints have no secrets and are not counted.
    pub unreadable_endpoints: u64,
    /// Deliveries that wait, by subscription: at most 100 subscriptions, those with the most deliveries first.
    pub waiting: Vec<WaitingDeliveries>,
}

/// Deliveries of one subscription that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WaitingDeliveries {
    /// Name of the subscription, or id of the endpoint.
    pub subscription: String,
    /// Whether the subscription is on record.
    pub on_record: bool,
    /// Deliveries that are due now.
    pub due: u64,
    /// Deliveries without a failed attempt that are due later: behind an open circuit, snoozed, or published with a delay.
    pub parked: u64,
    /// When the oldest parked event was published.
    pub oldest_parked_at: Option<Time>,
    /// Deliveries that wait between two attempts.
    pub retrying: u64,
    /// Deliveries that wait for a concurrency or rate limit.
    pub backlogged: u64,
    /// When the oldest event in the backlog was published.
    pub oldest_backlogged_at: Option<Time>,
}

impl Client {
    /// Counts the work that waits, by subscription.
    pub async fn diagnostics(&self) -> Result<Diagnostics> {
        self.get("/v1/diagnostics", &()).await
    }
}
