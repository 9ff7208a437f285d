//! The retry budget of a subscription: one of this process, or its share of one that all processes on the same database divide.

use std::sync::Mutex;

use redrive_retry::Timestamp;
use redrive_retry::budget::{BudgetConfig, BudgetSnapshot, RetryBudget};
use redrive_store::{BudgetReport, SubscriptionName};

use crate::budget_queue::BudgetQueue;
use crate::cluster_budget::BudgetShare;
use crate::lock::lock;

/// Pays for retries from a token bucket.
#[derive(Debug)]
pub(crate) struct Budget {
    bucket: RetryBudget,
    /// Spreads deliveries that wait for the budget.
    queue: BudgetQueue,
    /// `None` unless the budget is shared and other processes can exist. A std mutex: locked for a few instructions.
    share: Option<Mutex<BudgetShare>>,
}

impl Budget {
    /// A budget of this process alone.
    pub(crate) fn new(config: BudgetConfig) -> Self {
        Budget { bucket: RetryBudget::new(config), queue: BudgetQueue::new(), share: None }
    }

    /// This process's share of a budget for all processes.
    pub(crate) fn shared(config: BudgetConfig, now: Timestamp) -> Self {
        let bucket = RetryBudget::empty(config, now);
        Budget { bucket, queue: BudgetQueue::new(), share: Some(Mutex::default()) }
    }

    /// Deposits for a first attempt.
    pub(crate) fn first_attempt(&self) {
        self.bucket.first_attempt();
    }

    /// Pays for one retry, or returns when to ask again.
    pub(crate) fn pay(&self, now: Timestamp, spread: u64) -> BudgetSnapshot {
        match self.bucket.withdraw(now) {
            BudgetSnapshot::Spent { .. } => {
                let refill_ms = self.bucket.refill_interval_ms().unwrap_or(u64::MAX);
                BudgetSnapshot::Spent { again_at: Some(self.queue.join(now, refill_ms, spread)) }
            }
            granted => granted,
        }
    }

    /// Moves its times by milliseconds, after the clock was set by as many.
    pub(crate) fn shift(&self, step_ms: i64) {
        self.bucket.shift(step_ms);
        self.queue.shift(step_ms);
    }

    /// Returns the payment of a retry that was not made.
    pub(crate) fn refund(&self) {
        self.bucket.refund();
    }

    /// Returns the number of retries that the budget can pay for now.
    pub(crate) fn left(&self) -> u32 {
        self.bucket.left()
    }

    /// Whether other processes share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.share.is_some()
    }

    /// The report to the other processes, if one is due.
    pub(crate) fn report(&self, name: &SubscriptionName, now: Timestamp) -> Option<BudgetReport> {
        lock(self.share.as_ref()?).is_due(now).then(|| BudgetReport {
            subscription: name.clone(),
            retries_left: self.left(),
            window: BudgetShare::PRESENCE_TIMEOUT,
        })
    }

    /// Makes a report due again, because the store refused the last one.
    pub(crate) fn report_failed(&self) {
        if let Some(share) = &self.share {
            lock(share).report_failed();
        }
    }

    /// Divides the budget among this process and `others`.
    pub(crate) fn apply(&self, others: u32, now: Timestamp) {
        let Some(share) = &self.share else { return };
        let size = lock(share).apply(others);
        self.bucket.scale_down(now, size.parts);
        if size.is_full {
            self.bucket.fill();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    #[test]
    fn each_waiting_delivery_asks_again_at_its_own_time() {
        let budget = Budget::new(BudgetConfig::new(0.1, 1, 2.0).unwrap());
        assert_eq!(budget.pay(T0, 0), BudgetSnapshot::Granted);
        for position in 1..=3 {
            let again_at = Some(T0 + Duration::from_millis(500) * position);
            assert_eq!(budget.pay(T0, 0), BudgetSnapshot::Spent { again_at });
        }
        (0..10).for_each(|_| budget.first_attempt());
        assert_eq!(budget.pay(T0, 0), BudgetSnapshot::Granted, "first attempts have paid in a retry");
    }
}
