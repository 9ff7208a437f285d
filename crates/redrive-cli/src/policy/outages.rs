//! Finds outages in recorded failures: from the first failed attempt on a target to its next success.

use std::collections::BTreeMap;

use redrive_retry::Timestamp;

use crate::history::works::{Collected, End};
use crate::time_format::millis;

/// Lengths of the ended outages of all targets, shortest first, and the number of targets that have not recovered.
pub(super) fn outages(history: &Collected) -> (Vec<u64>, u64) {
    let mut failures: BTreeMap<&str, Vec<Timestamp>> = BTreeMap::new();
    for work in history.works.iter().filter(|work| work.end != End::Permanent) {
        failures.entry(&work.target).or_default().extend(&work.failures);
    }
    let (mut lengths, mut open) = (Vec::new(), 0);
    for (target, mut failures) in failures {
        failures.sort_unstable();
        let successes = history.successes.get(target).map_or(&[][..], Vec::as_slice);
        let mut ended = None;
        for failure in failures {
            if ended.is_some_and(|ended| failure <= ended) {
                continue; // part of the last outage
            }
            match successes.get(successes.partition_point(|success| *success <= failure)) {
                Some(success) => {
                    lengths.push(millis(success.since(failure)));
                    ended = Some(*success);
                }
                None => {
                    open += 1;
                    break;
                }
            }
        }
    }
    lengths.sort_unstable();
    (lengths, open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::works::Work;

    #[test]
    fn failures_until_the_next_success_are_one_outage() {
        let at = |second: i64| Timestamp::from_millis(second * 1000);
        let work = |target: &str, failures: &[i64], end| Work {
            identity: "event".into(),
            target: target.into(),
            failures: failures.iter().map(|second| at(*second)).collect(),
            failing_ms: 0,
            parked_ms: 0,
            planned: at(*failures.last().unwrap() + 1),
            end,
            policy: None,
        };
        let history = Collected {
            works: vec![
                work("a", &[10, 12], End::Dead),
                work("a", &[11, 15], End::Succeeded(at(20))),
                work("a", &[30], End::Succeeded(at(31))),
                work("b", &[5], End::Open),
                work("b", &[1], End::Permanent),
            ],
            successes: BTreeMap::from([("a".into(), vec![at(20), at(31)])]),
        };
        assert_eq!(outages(&history), (vec![1000, 10_000], 1));
    }
}
