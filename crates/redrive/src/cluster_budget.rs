//! Shared retry budget of several processes: one process's share of it.
//!
//! The budget is divided, not lent: each of `n` processes may save an `n`-th of the reserve, gets an `n`-th of the steady
//! refill, and keeps the tokens that its own first attempts earn. The shares add up to one budget. A process only needs to know
//! the number of live processes.

use std::time::Duration;

use redrive_retry::Timestamp;

/// Schedules a process's presence reports and computes its share from the number of other processes. Plain state.
#[derive(Clone, Debug, Default)]
pub(crate) struct BudgetShare {
    reported_at: Option<Timestamp>,
    /// Number of answers so far, up to [`Self::ANSWERS_TO_BE_SURE`].
    answers: u32,
}

/// Size of one process's share.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareSize {
    /// Number of processes that divide the budget.
    pub(crate) parts: u32,
    /// Whether the share is to be filled now.
    pub(crate) is_full: bool,
}

impl BudgetShare {
    /// A process without a report for this long no longer counts.
    pub(crate) const PRESENCE_TIMEOUT: Duration = Duration::from_secs(15);

    /// Two processes that start simultaneously see each other in the second answer.
    const ANSWERS_TO_BE_SURE: u32 = 2;

    /// Whether a presence report is due; a due report counts as sent.
    pub(crate) fn is_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.answers < Self::ANSWERS_TO_BE_SURE
            || self.reported_at.is_none_or(|at| now < at || now.since(at) >= Self::PRESENCE_TIMEOUT / 3);
        if is_due {
            self.reported_at = Some(now);
        }
        is_due
    }

    /// Notes that the last report failed, so the next one is due at once.
    pub(crate) fn report_failed(&mut self) {
        self.reported_at = None;
    }

    /// Applies the answer to a report: the number of other live processes.
    ///
    /// A process that finds no other starts with a full bucket. A process that joins others starts with an empty one, because
    /// they may have spent theirs: otherwise a restart would circumvent the budget.
    pub(crate) fn apply(&mut self, others: u32) -> ShareSize {
        let was_unsure = self.answers < Self::ANSWERS_TO_BE_SURE;
        self.answers = self.answers.saturating_add(1).min(Self::ANSWERS_TO_BE_SURE);
        let is_full = was_unsure && self.answers == Self::ANSWERS_TO_BE_SURE && others == 0;
        ShareSize { parts: others.saturating_add(1), is_full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::budget::{BudgetConfig, BudgetSnapshot, RetryBudget};

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn at(secs: u64) -> Timestamp {
        T0 + Duration::from_secs(secs)
    }

    #[test]
    fn a_single_process_starts_full_and_a_joining_process_starts_empty() {
        let mut alone = BudgetShare::default();
        assert_eq!(alone.apply(0), ShareSize { parts: 1, is_full: false }, "another process may be starting");
        assert_eq!(alone.apply(0), ShareSize { parts: 1, is_full: true });
        assert_eq!(alone.apply(0), ShareSize { parts: 1, is_full: false }, "filled once");
        let mut joining = BudgetShare::default();
        assert!((0..9).all(|_| !joining.apply(3).is_full));
        assert!(!joining.apply(0).is_full, "not filled after all other processes have left");
        let mut at_once = BudgetShare::default();
        assert!(!at_once.apply(0).is_full && !at_once.apply(1).is_full);
    }

    #[test]
    fn a_process_reports_three_times_per_presence_timeout() {
        let mut part = BudgetShare::default();
        assert!(part.is_due(T0) && part.is_due(T0), "due until two answers have come");
        part.apply(0);
        part.apply(0);
        let reports = (1..=30).filter(|secs| part.is_due(at(*secs))).count();
        assert_eq!(reports, 6);
        part.report_failed();
        assert!(part.is_due(at(31)));
    }

    /// Each of `nodes` withdraws as many retries as possible in `secs` seconds and makes `firsts` first attempts per second.
    fn spent_by_all(config: BudgetConfig, nodes: u32, firsts: u32, secs: u64) -> Vec<u32> {
        let parts: Vec<_> = (0..nodes).map(|_| RetryBudget::empty(config, T0)).collect();
        parts.iter().for_each(|part| part.scale_down(T0, nodes));
        let mut spent = vec![0; parts.len()];
        for secs in 1..=secs {
            for (part, spent) in parts.iter().zip(&mut spent) {
                (0..firsts).for_each(|_| part.first_attempt());
                while part.withdraw(at(secs)) == BudgetSnapshot::Granted {
                    *spent += 1;
                }
            }
        }
        spent
    }

    #[test]
    fn the_shares_add_up_to_one_budget_and_are_equal() {
        let config = BudgetConfig::new(0.1, 1000, 10.0).unwrap();
        for nodes in [1, 2, 5, 8] {
            let spent = spent_by_all(config, nodes, 40 / nodes, 100);
            let sum: u32 = spent.iter().sum();
            // 40 first attempts a second earn 4, the steady refill is 10.
            assert!((1400 - nodes..=1400).contains(&sum), "{nodes}: {sum}");
            assert!(spent.iter().all(|one| *one >= 1400 / nodes - 1), "{spent:?}");
        }
    }

    #[test]
    fn a_joining_process_shrinks_the_other_shares() {
        let config = BudgetConfig::new(0.0, 10, 0.001).unwrap();
        let part = RetryBudget::empty(config, T0);
        part.fill();
        assert_eq!(part.left(), 10);
        part.scale_down(T0, 2);
        assert_eq!(part.left(), 5);
        part.scale_down(T0, 40);
        assert_eq!(part.left(), 1, "a share below one would never allow a retry");
    }
}
