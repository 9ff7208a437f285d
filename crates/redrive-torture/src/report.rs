//! What a fault was tried on, and what came of it.

use serde::{Deserialize, Serialize};

/// The result of one kind of fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was done to the bus: "random kills".
    pub fault: String,
    /// How often: rounds, crash points, images, operations.
    pub rounds: u64,
    /// What `rounds` counts: "kills".
    pub unit: String,
    /// Events whose publisher was told that they are on stable storage.
    pub acknowledged: u64,
    /// Acknowledged events that were neither waiting, running, done nor dead afterwards.
    pub lost: u64,
    /// Handlers that ran to their end more than once for an event.
    pub duplicates: u64,
    /// Everything else that must not be: one sentence each, with the id of the event.
    pub violations: Vec<String>,
    /// What was found on purpose: one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// With which seed it can be repeated.
    pub seed: u64,
    /// Anything worth knowing beside the numbers.
    pub detail: String,
}

impl Report {
    /// Whether the promise was kept.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.violations.is_empty()
    }
}
