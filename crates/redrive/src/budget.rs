//! The retry budget of a subscription: of this process, or its part of one that all processes which share the store have in
//! common.

use std::sync::{Mutex, MutexGuard, PoisonError};

use redrive_retry::{BudgetConfig, BudgetPart, BudgetSnapshot, RetryBudget, Timestamp};
use redrive_store::{BudgetReport, SubscriptionName};

/// Pays for retries, or says when to ask again.
#[derive(Debug)]
pub(crate) struct Budget {
    bucket: RetryBudget,
    /// Nothing where it is not wanted, or nobody else can be there. A std mutex: held for a few instructions.
    common: Option<Mutex<BudgetPart>>,
}

impl Budget {
    /// A budget of this process alone.
    pub(crate) fn new(config: BudgetConfig) -> Self {
        Budget { bucket: RetryBudget::new(config), common: None }
    }

    /// This process's part of one for all.
    pub(crate) fn in_common(config: BudgetConfig, now: Timestamp) -> Self {
        Budget { bucket: RetryBudget::part(config, now), common: Some(Mutex::default()) }
    }

    /// A first attempt is made.
    pub(crate) fn first_attempt(&self) {
        self.bucket.first_attempt();
    }

    /// Pays for one retry, or says when to ask again. Asks nobody else.
    pub(crate) fn pay(&self, now: Timestamp, spread: u64) -> BudgetSnapshot {
        self.bucket.withdraw_or_wait(now, spread)
    }

    /// A retry that was paid for is not made.
    pub(crate) fn refund(&self) {
        self.bucket.refund();
    }

    pub(crate) fn left(&self) -> u32 {
        self.bucket.left()
    }

    pub(crate) fn is_common(&self) -> bool {
        self.common.is_some()
    }

    /// What to tell the others, if it is time.
    pub(crate) fn report(&self, name: &SubscriptionName, now: Timestamp) -> Option<BudgetReport> {
        lock(self.common.as_ref()?).is_due(now).then(|| BudgetReport {
            subscription: name.clone(),
            retries_left: self.left(),
            window: BudgetPart::HERE_FOR,
        })
    }

    /// Nobody has heard what was told last.
    pub(crate) fn unheard(&self) {
        if let Some(common) = &self.common {
            lock(common).unheard();
        }
    }

    /// So many others are there.
    pub(crate) fn learn(&self, others: u32, now: Timestamp) {
        let Some(common) = &self.common else { return };
        let share = lock(common).learn(others);
        self.bucket.divide(now, share);
    }
}

fn lock(part: &Mutex<BudgetPart>) -> MutexGuard<'_, BudgetPart> {
    // Every method leaves the state valid, so a poisoned lock is still good to use.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
