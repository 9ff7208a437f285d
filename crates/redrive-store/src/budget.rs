//! Retry budgets that several processes have in common: what each tells, and what it is told.

use std::time::Duration;

use crate::event::SubscriptionName;

/// This process is there, and has its part of a budget.
#[derive(Clone, Debug)]
pub struct BudgetReport {
    /// Whose budget.
    pub subscription: SubscriptionName,
    /// What is left in its part, for whoever looks after the database.
    pub retries_left: u32,
    /// Who was silent for longer is not there any more.
    pub window: Duration,
}

/// Among how many a budget is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetView {
    /// Whose budget.
    pub subscription: SubscriptionName,
    /// How many other processes are there.
    pub others: u32,
}
