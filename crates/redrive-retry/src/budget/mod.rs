//! The retry budget: retries may not exceed a share of first attempts.
//!
//! When everything fails, retries multiply the load exactly when it hurts most. A token bucket stops that: each first
//! attempt pays in a share of a token, each retry takes one out, and a small steady trickle keeps a quiet client able
//! to retry at all. (The standard retry mode of the AWS SDKs and the client-side throttling of Google's SRE book.)

mod line;
mod part;

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::ratio::Ratio;
use crate::timestamp::Timestamp;

use self::line::Line;
pub use self::part::{BudgetPart, BudgetShare};

/// One retry in the unit of the bucket: so fine that a trickle in millionths a second is a whole number a millisecond.
const TOKEN: u64 = 1_000_000_000;
const UNITS_PER_MILLIONTH: u64 = TOKEN / 1_000_000;

/// The numbers of a budget.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BudgetConfig {
    share: Ratio,
    reserve: u32,
    per_second: Ratio,
}

impl Default for BudgetConfig {
    /// One retry for ten first attempts, 100 in reserve, and one per second in any case.
    fn default() -> Self {
        BudgetConfig { share: Ratio::from_millionths(100_000), reserve: 100, per_second: Ratio::ONE }
    }
}

impl BudgetConfig {
    /// `share` of a retry earned by each first attempt (0.1 is one in ten), at most `reserve` saved up, and
    /// `per_second` given whatever the traffic.
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

    /// Whether work that waits for it gets its turn some day, also if no first attempt is ever made again.
    pub fn for_waiting(self) -> Result<Self, BudgetError> {
        if self.per_second == Ratio::from_millionths(0) { Err(BudgetError::NoTrickle) } else { Ok(self) }
    }
}

/// Why a budget cannot be.
#[derive(Copy, Clone, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// Negative, NaN or absurd.
    #[error("retry budget: {field} = {value} does not work: set it from 0 to 4294, such as 0.1")]
    NotANumber {
        /// Which number.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A bucket that holds nothing.
    #[error("retry budget: a reserve of 0 never allows a retry: set it to 1 or more, or use max_attempts 1")]
    NoReserve,
    /// Work that waits could wait for ever.
    #[error(
        "retry budget: with per_second = 0 work that waits for it may wait for ever: set it above 0, such as 0.1"
    )]
    NoTrickle,
}

/// What a decision needs to know of the budget.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BudgetSnapshot {
    /// No budget applies.
    #[default]
    Unlimited,
    /// A retry has been paid for.
    Granted,
    /// Nothing left.
    Spent {
        /// When to ask again, for work that can wait on disk. Without it the work is given up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again_at: Option<Timestamp>,
    },
}

/// A bucket shared by all calls to one destination. Wait-free on the path of a call that succeeds.
#[derive(Debug)]
pub struct RetryBudget {
    config: BudgetConfig,
    /// In units of a [`TOKEN`].
    tokens: AtomicU64,
    /// When the trickle was last paid in.
    trickled_at: AtomicI64,
    /// Among how many processes it is divided; this is the part of one.
    parts: AtomicU32,
    /// Who waits for it.
    line: Line,
}

impl RetryBudget {
    /// A full bucket.
    pub fn new(config: BudgetConfig) -> Self {
        RetryBudget {
            config,
            tokens: AtomicU64::new(u64::from(config.reserve) * TOKEN),
            trickled_at: AtomicI64::new(i64::MIN),
            parts: AtomicU32::new(1),
            line: Line::new(),
        }
    }

    /// What one process has of a bucket that several have in common: nothing yet. See [`BudgetPart`].
    pub fn part(config: BudgetConfig, now: Timestamp) -> Self {
        RetryBudget {
            tokens: AtomicU64::new(0),
            trickled_at: AtomicI64::new(now.as_millis()),
            ..RetryBudget::new(config)
        }
    }

    /// From now on it is divided so. What does not fit into the part is gone.
    pub fn divide(&self, now: Timestamp, share: BudgetShare) {
        self.trickle(now); // up to here by the division before
        self.parts.store(share.parts.max(1), Ordering::Release);
        let capacity = self.capacity();
        let _ = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |tokens| {
            Some(if share.is_full { capacity } else { tokens.min(capacity) })
        });
    }

    /// How many retries are saved up, as of the last time somebody asked.
    pub fn left(&self) -> u32 {
        u32::try_from(self.tokens.load(Ordering::Acquire) / TOKEN).unwrap_or(u32::MAX)
    }

    /// A first attempt is made: pays in its share.
    pub fn first_attempt(&self) {
        self.pay_in(u64::from(self.config.share.millionths()) * UNITS_PER_MILLIONTH);
    }

    /// Takes the price of one retry, if it is there.
    pub fn withdraw(&self, now: Timestamp) -> BudgetSnapshot {
        self.trickle(now);
        let taken =
            self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |tokens| tokens.checked_sub(TOKEN));
        match taken {
            Ok(_) => BudgetSnapshot::Granted,
            Err(tokens) => BudgetSnapshot::Spent { again_at: self.next_token_at(tokens, now) },
        }
    }

    /// The same for work that waits where it is safe: if nothing is there, `again_at` is when to ask again, for each who waits
    /// another time. It comes back then, whether or not there is something. `spread` is any number that is another one for other
    /// work.
    pub fn withdraw_or_wait(&self, now: Timestamp, spread: u64) -> BudgetSnapshot {
        match self.withdraw(now) {
            BudgetSnapshot::Spent { .. } => {
                let per_retry = TOKEN.checked_div(self.per_millisecond()).unwrap_or(u64::MAX);
                BudgetSnapshot::Spent { again_at: Some(self.line.join(now, per_retry, spread)) }
            }
            granted => granted,
        }
    }

    /// Gives back a withdrawn retry that was not made.
    pub fn refund(&self) {
        self.pay_in(TOKEN);
    }

    /// Of this part. Never less than one retry: less would be none for ever.
    fn capacity(&self) -> u64 {
        (u64::from(self.config.reserve) * TOKEN / u64::from(self.parts.load(Ordering::Acquire))).max(TOKEN)
    }

    /// What trickles into this part: `per_second` millionths of a retry a second are as many units a millisecond.
    fn per_millisecond(&self) -> u64 {
        u64::from(self.config.per_second.millionths()) / u64::from(self.parts.load(Ordering::Acquire))
    }

    fn pay_in(&self, amount: u64) {
        let capacity = self.capacity();
        // Plain addition is enough when there is room; the compare-and-set keeps the bucket from overflowing.
        let _ = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |tokens| {
            (tokens < capacity).then(|| tokens.saturating_add(amount).min(capacity))
        });
    }

    /// Pays in what has trickled since the last time somebody asked.
    fn trickle(&self, now: Timestamp) {
        let before = self.trickled_at.load(Ordering::Acquire);
        if before == i64::MIN {
            let _ = self.trickled_at.compare_exchange(
                before,
                now.as_millis(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            return;
        }
        let millis = u64::try_from(now.as_millis().saturating_sub(before)).unwrap_or(0);
        // Divided at the end: nothing to speak of is lost to rounding, however many the parts are.
        let whole = u64::from(self.config.per_second.millionths()).saturating_mul(millis);
        let amount = whole / u64::from(self.parts.load(Ordering::Acquire));
        // Only who moves the mark pays in, so that no millisecond is paid twice.
        if amount > 0
            && self
                .trickled_at
                .compare_exchange(before, now.as_millis(), Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            self.pay_in(amount);
        }
    }

    fn next_token_at(&self, tokens: u64, now: Timestamp) -> Option<Timestamp> {
        let per_millisecond = self.per_millisecond();
        let missing = TOKEN - tokens.min(TOKEN);
        (per_millisecond > 0).then(|| now.plus_millis(missing.div_ceil(per_millisecond).max(1)))
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
    fn a_spent_budget_says_when_the_next_retry_is_there() {
        let budget = RetryBudget::new(BudgetConfig::new(0.0, 1, 2.0).unwrap());
        assert!(granted(&budget, T0));
        let again_at = Some(T0 + Duration::from_millis(500));
        assert_eq!(budget.withdraw(T0), BudgetSnapshot::Spent { again_at });
        assert!(granted(&budget, T0 + Duration::from_millis(500)));
    }

    #[test]
    fn a_slow_trickle_is_not_lost_to_rounding() {
        let budget = RetryBudget::new(BudgetConfig::new(0.0, 1, 0.0019).unwrap());
        assert!(granted(&budget, T0));
        let came = (0..600_000).find(|ms| granted(&budget, T0 + Duration::from_millis(*ms)));
        assert!(came.is_some_and(|ms| (526_000..=527_000).contains(&ms)), "{came:?}");
    }

    #[test]
    fn without_a_trickle_there_is_no_such_time() {
        let budget = RetryBudget::new(BudgetConfig::new(0.1, 1, 0.0).unwrap());
        assert!(granted(&budget, T0));
        assert_eq!(budget.withdraw(T0 + Duration::from_secs(9999)), BudgetSnapshot::Spent { again_at: None });
    }

    #[test]
    fn the_reserve_is_never_exceeded_and_a_refund_counts() {
        let budget = RetryBudget::new(BudgetConfig::new(1.0, 2, 0.0).unwrap());
        (0..100).for_each(|_| budget.first_attempt());
        assert!(granted(&budget, T0) && granted(&budget, T0) && !granted(&budget, T0));
        budget.refund();
        assert!(granted(&budget, T0) && !granted(&budget, T0));
    }

    #[test]
    fn many_threads_never_get_more_than_there_is() {
        let budget = RetryBudget::new(BudgetConfig::new(0.0, 100, 0.0).unwrap());
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..50).filter(|_| granted(&budget, T0)).count())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(sum, 100);
    }

    #[test]
    fn who_can_wait_is_told_when_to_ask_again_each_at_another_time() {
        let budget = RetryBudget::new(BudgetConfig::new(0.1, 1, 2.0).unwrap());
        assert_eq!(budget.withdraw_or_wait(T0, 0), BudgetSnapshot::Granted);
        for place in 1..=3 {
            let again_at = Some(T0 + Duration::from_millis(500) * place);
            assert_eq!(budget.withdraw_or_wait(T0, 0), BudgetSnapshot::Spent { again_at });
        }
        (0..10).for_each(|_| budget.first_attempt());
        assert_eq!(budget.withdraw_or_wait(T0, 0), BudgetSnapshot::Granted, "whoever asks");
    }

    #[test]
    fn bad_numbers_are_refused() {
        assert!(BudgetConfig::new(f64::NAN, 1, 0.0).unwrap_err().to_string().contains("share = NaN"));
        assert!(BudgetConfig::new(0.1, 1, -1.0).unwrap_err().to_string().contains("per_second = -1"));
        assert_eq!(BudgetConfig::new(0.1, 0, 1.0), Err(BudgetError::NoReserve));
        assert_eq!(BudgetConfig::new(0.1, 1, 0.0).unwrap().for_waiting(), Err(BudgetError::NoTrickle));
        assert!(BudgetConfig::default().for_waiting().is_ok());
    }
}
