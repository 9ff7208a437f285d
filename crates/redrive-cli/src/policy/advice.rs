//! Recommends changes to a policy whose simulation has dead events. A recommended number of attempts was simulated first.

use super::simulation::{Comparison, Simulation};
use redrive_retry::{Jitter, RetryPolicy};

use super::schedule::Schedule;
use crate::format;
use crate::time_format::millis;

/// More attempts do not help: the delays are too short.
const MAX_ATTEMPTS: u32 = 100;
/// Simulated attempts that the search may use in total: about a second.
const SEARCH_BUDGET: u64 = 4_000_000;

/// Recommendation; `None` if the policy has no dead event.
pub(crate) fn advise(simulation: &Simulation, both: &Comparison) -> Option<String> {
    let given = if both.assumed { &both.without_jitter } else { &both.with_jitter };
    if given.dead == 0 {
        return None;
    }
    if both.assumed && both.with_jitter.dead == 0 {
        return Some("Add --jitter full.".to_owned());
    }
    let jitter = if both.assumed { " and --jitter full" } else { "" };
    let spread = both.jitter;
    Some(match enough_attempts(simulation, spread) {
        Some((attempts, last)) => format!(
            "With --max-attempts {attempts}{jitter} every event is delivered, the last one after {}.",
            format::short_duration(last)
        ),
        None => format!(
            "Raise --max-attempts or --cap{jitter}, so that more attempts come after the outage, or plan for a redrive \
             from the dead-letter queue."
        ),
    })
}

/// Finds the minimum number of attempts that deliver everything, and the time of the last delivery, within the search budget.
fn enough_attempts(simulation: &Simulation, jitter: Jitter) -> Option<(u32, u64)> {
    let with = |attempts: u32| {
        let builder = simulation.policy.to_builder().jitter(jitter);
        builder.max_attempts(attempts).build().ok()
    };
    // With fewer attempts, the last one comes before the end of the outage even with the longest delays.
    let most = with(MAX_ATTEMPTS)?;
    let outage = millis(simulation.outage);
    let reaches = |policy: &RetryPolicy| {
        let schedule = Schedule { policy, identity: None };
        schedule.rows().find(|row| row.total_max_ms >= outage).map(|row| row.attempt)
    };
    let from = reaches(&most)?.max(simulation.policy.max_attempts().saturating_add(1));
    let mut left = SEARCH_BUDGET;
    for attempts in from..=MAX_ATTEMPTS {
        let tried = Simulation { policy: with(attempts)?, ..simulation.clone() };
        left = left.checked_sub(simulation.events * u64::from(attempts))?;
        let result = tried.run().ok()?;
        if result.dead == 0 {
            return Some((attempts, result.last_delivery_ms.unwrap_or_default()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn simulation(policy: RetryPolicy, events: u64, outage_s: u64) -> Simulation {
        Simulation {
            policy,
            events,
            outage: Duration::from_secs(outage_s),
            capacity_per_second: 100,
            seed: 0,
        }
    }

    #[test]
    fn the_recommended_number_of_attempts_works_and_one_less_does_not() {
        let tried = simulation(RetryPolicy::webhook(), 1000, 30);
        let (attempts, last) = enough_attempts(&tried, Jitter::TEN_PERCENT).unwrap();
        let dead = |attempts| {
            let policy = tried.policy.to_builder().max_attempts(attempts).build().unwrap();
            Simulation { policy, ..tried.clone() }.run().unwrap().dead
        };
        assert_eq!(dead(attempts), 0);
        assert!(dead(attempts - 1) > 0);
        assert!(last > 30_000);
    }

    #[test]
    fn no_attempts_are_recommended_if_none_help() {
        let policy = RetryPolicy::bus().to_builder().max_delay(Duration::from_secs(1)).build().unwrap();
        let tried = simulation(policy, 1000, 3600);
        let advice = advise(&tried, &tried.compare().unwrap()).unwrap();
        assert!(advice.starts_with("Raise --max-attempts or --cap"), "{advice}");
    }

    #[test]
    fn nothing_is_recommended_without_dead_events() {
        let tried = simulation(RetryPolicy::webhook(), 10, 5);
        assert_eq!(advise(&tried, &tried.compare().unwrap()), None);
    }
}
