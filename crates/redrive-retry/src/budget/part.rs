//! One process's part in a budget that several have in common.
//!
//! A budget is divided, not lent: of `n` processes each may save up an `n`-th of the reserve, gets an `n`-th of the trickle, and
//! keeps what its own first attempts earn. The parts add up to one budget, and nobody can spend another one's. All that a process
//! must know of the others is how many there are.

use std::time::Duration;

use crate::timestamp::Timestamp;

/// Says when to tell the others that one is there, and what follows from how many they are. Plain state: no clock, no network.
#[derive(Clone, Debug, Default)]
pub struct BudgetPart {
    told_at: Option<Timestamp>,
    /// How often others were looked for, up to as often as matters.
    looked: u32,
}

/// What this process has of a common budget.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BudgetShare {
    /// Among how many it is divided.
    pub parts: u32,
    /// Whether the part is full now, whatever was in it.
    pub is_full: bool,
}

impl BudgetPart {
    /// Who was silent for longer is not there any more.
    pub const HERE_FOR: Duration = Duration::from_secs(15);

    /// After how many looks it is known whether somebody else is there: two who come at the same moment see each other at the
    /// second one.
    const LOOKS: u32 = 2;

    /// Whether it is to be said now that this process is there.
    pub fn is_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.looked < Self::LOOKS
            || self.told_at.is_none_or(|at| now < at || now.since(at) >= Self::HERE_FOR / 3);
        if is_due {
            self.told_at = Some(now);
        }
        is_due
    }

    /// Nobody has heard it.
    pub fn unheard(&mut self) {
        self.told_at = None;
    }

    /// So many others are there.
    ///
    /// Who finds nobody begins with a full bucket. Who comes to others begins with an empty one, because the others may have
    /// spent what was in theirs: else a restart would be a way around the budget, and a new release on forty machines one, too.
    pub fn learn(&mut self, others: u32) -> BudgetShare {
        let was_looking = self.looked < Self::LOOKS;
        self.looked = self.looked.saturating_add(1).min(Self::LOOKS);
        let is_full = was_looking && self.looked == Self::LOOKS && others == 0;
        BudgetShare { parts: others.saturating_add(1), is_full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{BudgetConfig, BudgetSnapshot, RetryBudget};

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn at(secs: u64) -> Timestamp {
        T0 + Duration::from_secs(secs)
    }

    #[test]
    fn who_is_alone_begins_full_and_who_comes_to_others_begins_empty() {
        let mut alone = BudgetPart::default();
        assert_eq!(
            alone.learn(0),
            BudgetShare { parts: 1, is_full: false },
            "somebody may come at this moment"
        );
        assert_eq!(alone.learn(0), BudgetShare { parts: 1, is_full: true });
        assert_eq!(alone.learn(0), BudgetShare { parts: 1, is_full: false }, "once");
        let mut joining = BudgetPart::default();
        assert!((0..9).all(|_| !joining.learn(3).is_full));
        assert!(!joining.learn(0).is_full, "also when the others are gone");
        let mut at_once = BudgetPart::default();
        assert!(!at_once.learn(0).is_full && !at_once.learn(1).is_full);
    }

    #[test]
    fn a_process_says_that_it_is_there_three_times_before_it_is_thought_gone() {
        let mut part = BudgetPart::default();
        assert!(part.is_due(T0) && part.is_due(T0), "until it knows who is there");
        part.learn(0);
        part.learn(0);
        let told = (1..=30).filter(|secs| part.is_due(at(*secs))).count();
        assert_eq!(told, 6);
        part.unheard();
        assert!(part.is_due(at(31)));
    }

    /// Each of `nodes` asks for as many retries as it can get in `secs` seconds and makes `firsts` first attempts a second.
    fn spent_by_all(config: BudgetConfig, nodes: u32, firsts: u32, secs: u64) -> Vec<u32> {
        let parts: Vec<_> = (0..nodes).map(|_| RetryBudget::part(config, T0)).collect();
        parts.iter().for_each(|part| part.divide(T0, BudgetShare { parts: nodes, is_full: false }));
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
    fn the_parts_together_are_one_budget_and_all_the_same() {
        let config = BudgetConfig::new(0.1, 1000, 10.0).unwrap();
        for nodes in [1, 2, 5, 8] {
            let spent = spent_by_all(config, nodes, 40 / nodes, 100);
            let sum: u32 = spent.iter().sum();
            // 40 first attempts a second earn 4, the trickle is 10.
            assert!((1400 - nodes..=1400).contains(&sum), "{nodes}: {sum}");
            assert!(spent.iter().all(|one| *one >= 1400 / nodes - 1), "{spent:?}");
        }
    }

    #[test]
    fn a_process_that_joins_takes_from_the_others_what_they_have_too_much() {
        let config = BudgetConfig::new(0.0, 10, 0.001).unwrap();
        let part = RetryBudget::part(config, T0);
        part.divide(T0, BudgetShare { parts: 1, is_full: true });
        assert_eq!(part.left(), 10);
        part.divide(T0, BudgetShare { parts: 2, is_full: false });
        assert_eq!(part.left(), 5);
        part.divide(T0, BudgetShare { parts: 40, is_full: false });
        assert_eq!(part.left(), 1, "less than one would be none for ever");
    }
}
