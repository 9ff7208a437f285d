//! Circuits that several processes have in common: what each tells, and what it is told.

use std::time::Duration;

use redrive_retry::{CallCounts, CircuitState};

use crate::event::SubscriptionName;

/// The most processes whose counts are looked at for one circuit. Those heard of last are enough to decide by.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))] // only who shares the store has others
pub(crate) const MOST_NODES: i64 = 1000;

/// What this process has counted for a subscription.
#[derive(Clone, Debug)]
pub struct CircuitReport {
    /// Whose circuit.
    pub subscription: SubscriptionName,
    /// In which state of the circuit it was counted.
    pub generation: i64,
    /// In the window that ends now.
    pub counts: CallCounts,
    /// How long the window is: who was silent for longer is not there any more.
    pub window: Duration,
}

/// How a common circuit stands.
#[derive(Clone, Debug)]
pub struct CircuitView {
    /// Whose circuit.
    pub subscription: SubscriptionName,
    /// How it stands.
    pub state: CircuitState,
    /// What every other process that is there has counted in this state; zeros if it was in another one.
    pub others: Vec<CallCounts>,
}
