//! Counts finished guarded calls and their attempts by category.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::category::Category;

/// Custom categories with counters of their own; calls of further ones are counted as [`OTHER`].
const MAX_CUSTOM: usize = 1000;
const OTHER: &str = "(other)";

/// Counters of the finished calls of one category.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CategoryMetrics {
    /// Calls whose first attempt succeeded.
    pub succeeded_at_once: u64,
    /// Calls that succeeded after at least one failed attempt.
    pub succeeded_after_retry: u64,
    /// Calls that failed finally.
    pub failed: u64,
    /// Attempts of all these calls.
    pub attempts: u64,
}

impl CategoryMetrics {
    /// Number of finished calls. A cancelled call is not finished.
    pub fn calls(&self) -> u64 {
        self.succeeded_at_once + self.succeeded_after_retry + self.failed
    }

    /// Share of the calls that succeeded; `None` without a call.
    pub fn success_rate(&self) -> Option<f64> {
        ratio(self.succeeded_at_once + self.succeeded_after_retry, self.calls())
    }

    /// Average number of attempts of a call; `None` without a call.
    pub fn average_attempts(&self) -> Option<f64> {
        ratio(self.attempts, self.calls())
    }
}

#[allow(clippy::cast_precision_loss)] // exact up to 2^53 calls
fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// Counters by category.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// By [`Category::index`], so that counting takes no lock.
    predefined: [Counters; Category::ALL.len()],
    /// A std mutex, held for two additions only.
    custom: Mutex<HashMap<Category, Counters>>,
    other: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    succeeded_at_once: AtomicU64,
    succeeded_after_retry: AtomicU64,
    failed: AtomicU64,
    attempts: AtomicU64,
}

impl Meter {
    /// Counts a finished call.
    #[inline]
    pub(super) fn count(&self, category: &Category, attempts: u32, succeeded: bool) {
        match category.index() {
            Some(index) => self.predefined[index].count(attempts, succeeded),
            None => self.count_custom(category, attempts, succeeded),
        }
    }

    fn count_custom(&self, category: &Category, attempts: u32, succeeded: bool) {
        let mut custom = self.custom.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = custom.get(category) {
            known.count(attempts, succeeded);
        } else if custom.len() < MAX_CUSTOM {
            custom.entry(category.clone()).or_default().count(attempts, succeeded);
        } else {
            self.other.count(attempts, succeeded);
        }
    }

    /// Counters of every category with a finished call, by its code.
    pub(super) fn snapshot(&self) -> BTreeMap<String, CategoryMetrics> {
        let predefined = Category::ALL.into_iter().zip(&self.predefined);
        let predefined = predefined.map(|(category, counters)| (category.code().to_owned(), counters.get()));
        let custom = self.custom.lock().unwrap_or_else(PoisonError::into_inner);
        let custom: Vec<_> =
            custom.iter().map(|(category, counted)| (category.code().to_owned(), counted.get())).collect();
        let all = predefined.chain(custom).chain([(OTHER.to_owned(), self.other.get())]);
        all.filter(|(_, counted)| counted.calls() > 0).collect()
    }
}

impl Counters {
    #[inline]
    fn count(&self, attempts: u32, succeeded: bool) {
        let outcome = match (succeeded, attempts) {
            (true, 1) => &self.succeeded_at_once,
            (true, _) => &self.succeeded_after_retry,
            (false, _) => &self.failed,
        };
        outcome.fetch_add(1, Ordering::Relaxed);
        self.attempts.fetch_add(u64::from(attempts), Ordering::Relaxed);
    }

    fn get(&self) -> CategoryMetrics {
        CategoryMetrics {
            succeeded_at_once: self.succeeded_at_once.load(Ordering::Relaxed),
            succeeded_after_retry: self.succeeded_after_retry.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            attempts: self.attempts.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_category_and_outcome() {
        let meter = Meter::default();
        let payment = Category::custom("RETRY_PAYMENT").unwrap();
        for (category, attempts, succeeded) in [
            (&Category::KvGet, 1, true),
            (&Category::KvGet, 3, true),
            (&Category::KvGet, 3, false),
            (&payment, 2, true),
        ] {
            meter.count(category, attempts, succeeded);
        }
        let counted = meter.snapshot();
        assert_eq!(counted.keys().collect::<Vec<_>>(), ["RETRY_KV_GET", "RETRY_PAYMENT"]);
        let kv_get = counted["RETRY_KV_GET"];
        assert_eq!(
            kv_get,
            CategoryMetrics { succeeded_at_once: 1, succeeded_after_retry: 1, failed: 1, attempts: 7 }
        );
        assert_eq!((kv_get.success_rate(), kv_get.average_attempts()), (Some(2.0 / 3.0), Some(7.0 / 3.0)));
        assert_eq!(CategoryMetrics::default().success_rate(), None);
    }

    #[test]
    fn custom_categories_beyond_the_limit_share_one_counter() {
        let meter = Meter::default();
        for number in 0..MAX_CUSTOM + 7 {
            meter.count(&Category::custom(format!("RETRY_{number}")).unwrap(), 1, true);
        }
        let counted = meter.snapshot();
        assert_eq!((counted.len(), counted[OTHER].calls()), (MAX_CUSTOM + 1, 7));
    }
}
