//! `/v1/stats`: counts over the whole store.

use serde::{Deserialize, Serialize};

use crate::client::{Client, Result};

/// Counts over the whole store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Stats {
    /// Events waiting for their first attempt.
    pub pending: u64,
    /// Events in flight, or waiting for another attempt.
    pub processing: u64,
    /// Events handled and still kept.
    pub done: u64,
    /// Events in the dead-letter queue.
    pub dlq: u64,
    /// Deliveries to single subscriptions that are not finished.
    pub open_deliveries: u64,
    /// Deliveries in flight in the responding process.
    pub in_flight: u64,
    /// Size of the database.
    pub file_bytes: u64,
    /// Size of its write-ahead log, for a file.
    pub wal_bytes: u64,
}

impl Client {
    /// Counts events by status.
    pub async fn stats(&self) -> Result<Stats> {
        self.get("/v1/stats", &()).await
    }
}
