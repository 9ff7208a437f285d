//! Shared retry budgets: the report of a process, and the view it gets back.

use std::time::Duration;

use crate::event::SubscriptionName;

/// Reports that this process uses its share of a budget.
#[derive(Clone, Debug)]
pub struct BudgetReport {
    /// The subscription of the budget.
    pub subscription: SubscriptionName,
    /// Number of retries left in the share of this process, for diagnostics.
    pub retries_left: u32,
    /// A process without a report for this long no longer counts.
    pub window: Duration,
}

/// Number of processes that share a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetView {
    /// The subscription of the budget.
    pub subscription: SubscriptionName,
    /// Number of other processes.
    pub others: u32,
}
