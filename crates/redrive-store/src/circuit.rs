//! Shared circuit breakers: the report of a process, and the view it gets back.

use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::internal::CallCounts;

use crate::event::SubscriptionName;

/// Maximum number of processes whose counts are read for one circuit, the latest reports first.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))] // SQLite has one process
pub(crate) const MAX_NODES_PER_CIRCUIT: i64 = 1000;

/// State of a shared circuit. The default is a circuit that was never changed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitState {
    /// Number of changes so far. In a requested change: the generation that it replaces.
    pub generation: i64,
    /// Time at which a probe may go; `None` if the circuit is closed.
    pub until: Option<Timestamp>,
    /// End of the lease of a probe that is in flight.
    pub probe_until: Option<Timestamp>,
    /// Number of openings since the circuit was last closed.
    pub openings: u32,
}

/// Reports the outcome counts of this process for one subscription.
#[derive(Clone, Debug)]
pub struct CircuitReport {
    /// The subscription of the circuit.
    pub subscription: SubscriptionName,
    /// Generation of the circuit during which the outcomes were counted.
    pub generation: i64,
    /// Counts in the window that ends now.
    pub counts: CallCounts,
    /// Length of the window. A process without a report for this long no longer counts.
    pub window: Duration,
}

/// The state of a shared circuit with the counts of the other processes.
#[derive(Clone, Debug)]
pub struct CircuitView {
    /// The subscription of the circuit.
    pub subscription: SubscriptionName,
    /// State of the circuit.
    pub state: CircuitState,
    /// Counts of every other live process in this generation; zeros if its report is for another one.
    pub others: Vec<CallCounts>,
}
