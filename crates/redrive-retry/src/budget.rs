//! Retry budget: a token bucket that limits retries to a share of first attempts.
//!
//! When everything fails, retries multiply the load on a destination. The budget stops that: each first attempt pays in a
//! share of a token, each retry takes one token, and a small steady refill lets a quiet client retry at all. (The standard
//! retry mode of the AWS SDKs and the client-side throttling of Google's SRE book work this way.)
//!
//! ```
//! use redrive_retry::budget::{BudgetConfig, BudgetSnapshot, RetryBudget};
//! use redrive_retry::Timestamp;
//!
//! // One retry per ten first attempts, at most 5 saved up, and one per second regardless of traffic.
//! let budget = RetryBudget::new(BudgetConfig::new(0.1, 5, 1.0)?);
//! budget.first_attempt();
//! assert_eq!(budget.withdraw(Timestamp::EPOCH), BudgetSnapshot::Granted);
//! # Ok::<(), redrive_retry::budget::BudgetError>(())
//! ```

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::ratio::Ratio;
use crate::timestamp::Timestamp;

/// One retry in bucket units: fine enough that a refill in millionths per second is a whole number per millisecond.
const TOKEN: u64 = 1_000_000_000;
const UNITS_PER_MILLIONTH: u64 = TOKEN / 1_000_000;

/// Settings of a [`RetryBudget`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BudgetConfig {
    share: Ratio,
    reserve: u32,
    per_second: Ratio,
}

impl Default for BudgetConfig {
    /// One retry per ten first attempts, a reserve of 100, and a refill of one per second.
    fn default() -> Self {
        BudgetConfig { share: Ratio::from_millionths(100_000), reserve: 100, per_second: Ratio::ONE }
    }
}

impl BudgetConfig {
    /// Checks and creates a configuration: the `share` of a retry that each first attempt earns (0.1 is one in ten), the
    /// `reserve` of retries that can be saved up, and the steady refill in retries `per_second`.
    pub fn new(share: f64, reserve: u32, per_second: f64) -> Result<Self, BudgetError> {
        let ratio = |field, value| Ratio::from_f64(value).ok_or(BudgetError::NotANumber { field, value });
        let config = BudgetConfig {
            share: ratio("share", share)?,
            reserve,
            per_second: ratio("per_second", per_second)?,
        };
        if reserve == 0 {
            return Err(BudgetError::NoReserve);
        }
        Ok(config)
    }

    /// Checks that waiting work is certain to get a retry eventually, even without further first attempts.
    pub fn for_waiting(self) -> Result<Self, BudgetError> {
        if self.per_second == Ratio::from_millionths(0) { Err(BudgetError::NoRefill) } else { Ok(self) }
    }
}

/// Invalid settings of a retry budget.
#[derive(Copy, Clone, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// A number is negative, NaN or out of range.
    #[error("retry budget: {field} = {value} does not work: set it from 0 to 4294, such as 0.1")]
    NotANumber {
        /// Name of the setting.
        field: &'static str,
        /// The setting's value.
        value: f64,
    },
    /// The reserve is 0.
    #[error("retry budget: a reserve of 0 never allows a retry: set it to 1 or more, or use max_attempts 1")]
    NoReserve,
    /// There is no steady refill, so waiting work could wait forever.
    #[error(
        "retry budget: with per_second = 0 work that waits for it may wait forever: set it above 0, such as 0.1"
    )]
    NoRefill,
}

/// State of the budget as [`decide`](crate::decision::decide) sees it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BudgetSnapshot {
    /// No budget applies.
    #[default]
    Unlimited,
    /// One retry was withdrawn.
    Granted,
    /// The budget is spent.
    Spent {
        /// Time to ask again, for work that can wait on disk. Without it the work is dead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again_at: Option<Timestamp>,
    },
}

/// Token bucket of retries for one destination. Wait-free on the path of a call that succeeds.
#[derive(Debug)]
pub struct RetryBudget {
    config: BudgetConfig,
    /// Level in units of a [`TOKEN`].
    tokens: AtomicU64,
    /// Time of the last steady refill.
    refilled_at: AtomicI64,
    /// The configured budget is divided by this number: capacity and steady refill are one part of it.
    divisor: AtomicU32,
}

impl RetryBudget {
    /// Creates a full bucket.
    pub fn new(config: BudgetConfig) -> Self {
        RetryBudget {
            config,
            tokens: AtomicU64::new(u64::from(config.reserve) * TOKEN),
            refilled_at: AtomicI64::new(i64::MIN),
            divisor: AtomicU32::new(1),
        }
    }

    /// Number of saved retries as of the last refill.
    pub fn left(&self) -> u32 {
        u32::try_from(self.tokens.load(Ordering::Acquire) / TOKEN).unwrap_or(u32::MAX)
    }

    /// Pays in the share that a first attempt earns.
    pub fn first_attempt(&self) {
        self.pay_in(u64::from(self.config.share.millionths()) * UNITS_PER_MILLIONTH);
    }

    /// Takes one retry out of the bucket, if there is one.
    pub fn withdraw(&self, now: Timestamp) -> BudgetSnapshot {
        self.refill(now);
        let taken =
            self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |tokens| tokens.checked_sub(TOKEN));
        match taken {
            Ok(_) => BudgetSnapshot::Granted,
            Err(tokens) => BudgetSnapshot::Spent { again_at: self.next_token_at(tokens, now) },
        }
    }

    /// Gives back a withdrawn retry that was not made.
    pub fn refund(&self) {
        self.pay_in(TOKEN);
    }

    /// Capacity in units. At least one retry: a smaller one would never allow any.
    fn capacity(&self) -> u64 {
        (u64::from(self.config.reserve) * TOKEN / u64::from(self.divisor.load(Ordering::Acquire))).max(TOKEN)
    }

    /// Steady refill: `per_second` millionths of a retry per second equal as many units per millisecond.
    fn refill_per_millisecond(&self) -> u64 {
        u64::from(self.config.per_second.millionths()) / u64::from(self.divisor.load(Ordering::Acquire))
    }

    fn pay_in(&self, amount: u64) {
        let capacity = self.capacity();
        // Compare-and-set, so that the bucket never exceeds its capacity; a full bucket is not written to.
        let _ = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |tokens| {
            (tokens < capacity).then(|| tokens.saturating_add(amount).min(capacity))
        });
    }

    /// Pays in the steady refill since the last time.
    fn refill(&self, now: Timestamp) {
        let before = self.refilled_at.load(Ordering::Acquire);
        let advance = || {
            let now = now.as_millis();
            self.refilled_at.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if before == i64::MIN {
            advance();
            return;
        }
        let millis = u64::try_from(now.as_millis().saturating_sub(before)).unwrap_or(0);
        // Divided last, so that rounding loses almost nothing with any divisor.
        let whole = u64::from(self.config.per_second.millionths()).saturating_mul(millis);
        let amount = whole / u64::from(self.divisor.load(Ordering::Acquire));
        // Only the thread that advances the mark pays in, so that no millisecond is paid twice.
        if amount > 0 && advance() {
            self.pay_in(amount);
        }
    }

    fn next_token_at(&self, tokens: u64, now: Timestamp) -> Option<Timestamp> {
        let per_millisecond = self.refill_per_millisecond();
        let missing = TOKEN - tokens.min(TOKEN);
        (per_millisecond > 0).then(|| now.plus_millis(missing.div_ceil(per_millisecond).max(1)))
    }
}

/// For the crates of Redrive, which divide one budget among processes and follow a clock that is set; not covered by the stability
/// promise.
#[doc(hidden)]
impl RetryBudget {
    /// Creates an empty bucket that refills from `now` on.
    pub fn empty(config: BudgetConfig, now: Timestamp) -> Self {
        RetryBudget {
            tokens: AtomicU64::new(0),
            refilled_at: AtomicI64::new(now.as_millis()),
            ..RetryBudget::new(config)
        }
    }

    /// Scales capacity and steady refill down to the configured values divided by `divisor`. Tokens beyond the capacity are lost.
    pub fn scale_down(&self, now: Timestamp, divisor: u32) {
        self.refill(now); // up to now at the previous scale
        self.divisor.store(divisor.max(1), Ordering::Release);
        self.tokens.fetch_min(self.capacity(), Ordering::AcqRel);
    }

    /// Fills the bucket up to its capacity.
    pub fn fill(&self) {
        self.tokens.store(self.capacity(), Ordering::Release);
    }

    /// Moves the last refill by milliseconds, after the clock that `now` comes from was set by as many.
    pub fn shift(&self, step_ms: i64) {
        let moved = |at: i64| (at != i64::MIN).then(|| at.saturating_add(step_ms));
        let _ = self.refilled_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
    }

    /// Milliseconds that the steady refill takes for one retry; `None` without a steady refill.
    pub fn refill_interval_ms(&self) -> Option<u64> {
        TOKEN.checked_div(self.refill_per_millisecond())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn granted(budget: &RetryBudget, now: Timestamp) -> bool {
        budget.withdraw(now) == BudgetSnapshot::Granted
    }

    #[test]
    fn retries_do_not_exceed_their_share_of_first_attempts() {
        let budget = RetryBudget::new(BudgetConfig::new(0.1, 5, 0.0).unwrap());
        let mut retries = 0;
        for _ in 0..1000 {
            budget.first_attempt();
            retries += u32::from(granted(&budget, T0));
        }
        assert!((100..=105).contains(&retries), "one in ten and the reserve, not {retries}");
    }

    #[test]
    fn a_spent_budget_reports_the_time_of_the_next_token() {
        let budget = RetryBudget::new(BudgetConfig::new(0.0, 1, 2.0).unwrap());
        assert!(granted(&budget, T0));
        let again_at = Some(T0 + Duration::from_millis(500));
        assert_eq!(budget.withdraw(T0), BudgetSnapshot::Spent { again_at });
        assert!(granted(&budget, T0 + Duration::from_millis(500)));
    }

    #[test]
    fn a_slow_refill_is_not_lost_to_rounding() {
        let budget = RetryBudget::new(BudgetConfig::new(0.0, 1, 0.0019).unwrap());
        assert!(granted(&budget, T0));
        let granted_at = (0..600_000).find(|ms| granted(&budget, T0 + Duration::from_millis(*ms)));
        assert!(granted_at.is_some_and(|ms| (526_000..=527_000).contains(&ms)), "{granted_at:?}");
    }

    #[test]
    fn without_refill_a_spent_budget_reports_no_time() {
        let budget = RetryBudget::new(BudgetConfig::new(0.1, 1, 0.0).unwrap());
        assert!(granted(&budget, T0));
        assert_eq!(budget.withdraw(T0 + Duration::from_secs(9999)), BudgetSnapshot::Spent { again_at: None });
    }

    #[test]
    fn tokens_never_exceed_the_reserve_and_refunds_count() {
        let budget = RetryBudget::new(BudgetConfig::new(1.0, 2, 0.0).unwrap());
        (0..100).for_each(|_| budget.first_attempt());
        assert!(granted(&budget, T0) && granted(&budget, T0) && !granted(&budget, T0));
        budget.refund();
        assert!(granted(&budget, T0) && !granted(&budget, T0));
    }

    #[test]
    fn concurrent_withdrawals_never_exceed_the_tokens() {
        let budget = RetryBudget::new(BudgetConfig::new(0.0, 100, 0.0).unwrap());
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..50).filter(|_| granted(&budget, T0)).count())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(sum, 100);
    }

    #[test]
    fn bad_numbers_are_refused() {
        assert!(BudgetConfig::new(f64::NAN, 1, 0.0).unwrap_err().to_string().contains("share = NaN"));
        assert!(BudgetConfig::new(0.1, 1, -1.0).unwrap_err().to_string().contains("per_second = -1"));
        assert_eq!(BudgetConfig::new(0.1, 0, 1.0), Err(BudgetError::NoReserve));
        assert_eq!(BudgetConfig::new(0.1, 1, 0.0).unwrap().for_waiting(), Err(BudgetError::NoRefill));
        assert!(BudgetConfig::default().for_waiting().is_ok());
    }
}
