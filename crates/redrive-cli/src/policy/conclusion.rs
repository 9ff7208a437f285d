//! Summarises a simulation in a sentence computed from its numbers, also if jitter does not help.

use super::simulation::{Comparison, Simulation, SimulationResult};

use super::advice::advise;
use crate::format::{count, counted, short_duration as duration};
use crate::time_format::millis;

/// Summary, with a recommendation if events are dead.
pub(crate) fn conclude(simulation: &Simulation, both: &Comparison) -> String {
    let mut text = verdict(simulation, both);
    if let Some(advice) = advise(simulation, both) {
        text.push(' ');
        text.push_str(&advice);
    }
    text
}

fn verdict(simulation: &Simulation, both: &Comparison) -> String {
    let (with, without) = (&both.with_jitter, &both.without_jitter);
    let events = counted(simulation.events, "event");
    let all = match simulation.events {
        1 => "the event".to_owned(),
        _ => format!("all {events}"),
    };
    if with.attempts == simulation.events && with.dead == 0 {
        return format!("The first attempt delivers {all}: the policy makes no difference.");
    }
    if with.delivered == 0 && without.delivered == 0 {
        let last = with.settled_ms.max(without.settled_ms);
        return format!(
            "No event is delivered, with or without jitter: the last attempt comes at {}, and the outage lasts {}.",
            duration(last),
            duration(millis(simulation.outage))
        );
    }
    let jitter = if both.assumed { "Full jitter" } else { "Jitter" };
    if with.dead == 0 && without.dead == 0 {
        return format!("{jitter} {} and {}.", peak(with, without), everything(with, without));
    }
    let delivered = match with.delivered.cmp(&without.delivered) {
        std::cmp::Ordering::Equal => {
            format!("makes no difference to what is delivered ({} of {events})", count(with.delivered))
        }
        _ if with.dead == 0 => format!("delivers {all} instead of {}", count(without.delivered)),
        std::cmp::Ordering::Greater => {
            format!("delivers {} of {events} instead of {}", count(with.delivered), count(without.delivered))
        }
        std::cmp::Ordering::Less => {
            format!(
                "delivers only {} of {events} instead of {}",
                count(with.delivered),
                count(without.delivered)
            )
        }
    };
    format!("{jitter} {delivered}, and {}.", peak(with, without))
}

/// Effect of jitter on the peak load after the outage.
fn peak(with: &SimulationResult, without: &SimulationResult) -> String {
    let (with, without) = (with.peak_after_outage_per_second, without.peak_after_outage_per_second);
    // A difference below 5 % is noise of the seed.
    if with.abs_diff(without) * 20 <= without {
        return format!("leaves the peak after the outage at {} attempts/s", count(with));
    }
    let verb = if with < without { "cuts" } else { "raises" };
    format!("{verb} the peak after the outage from {} to {} attempts/s", count(without), count(with))
}

/// Effect of jitter on the time of the last delivery.
fn everything(with: &SimulationResult, without: &SimulationResult) -> String {
    let at = |result: &SimulationResult| result.last_delivery_ms.unwrap_or(0);
    let difference = duration(at(with).abs_diff(at(without)));
    match at(with).cmp(&at(without)) {
        std::cmp::Ordering::Less => format!("delivers everything {difference} earlier"),
        std::cmp::Ordering::Equal => "delivers everything at the same time".to_owned(),
        std::cmp::Ordering::Greater => format!("delivers everything {difference} later"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::{Jitter, RetryPolicy};
    use std::time::Duration;

    fn conclusion(policy: RetryPolicy, events: u64, outage_ms: u64, capacity: u64) -> String {
        let simulation = Simulation {
            policy,
            events,
            outage: Duration::from_millis(outage_ms),
            capacity_per_second: capacity,
            seed: 0,
        };
        conclude(&simulation, &simulation.compare().unwrap())
    }

    fn webhook(attempts: u32, jitter: Jitter) -> RetryPolicy {
        let builder = RetryPolicy::webhook().to_builder();
        builder.max_attempts(attempts).jitter(jitter).build().unwrap()
    }

    #[test]
    fn a_success_at_the_first_attempt_is_reported() {
        let text = conclusion(RetryPolicy::bus(), 10, 0, 1000);
        assert_eq!(text, "The first attempt delivers all 10 events: the policy makes no difference.");
    }

    #[test]
    fn an_outage_longer_than_the_policy_gets_a_recommendation() {
        let text = conclusion(RetryPolicy::webhook(), 1000, 300_000, 1000);
        assert!(text.starts_with("No event is delivered, with or without jitter"), "{text}");
        assert!(text.contains("the outage lasts 5m. With --max-attempts "), "{text}");
    }

    #[test]
    fn a_gain_by_jitter_is_reported() {
        let text = conclusion(webhook(9, Jitter::Full), 1000, 30_000, 100);
        assert!(text.starts_with("Jitter delivers all 1000 events instead of "), "{text}");
        assert!(text.contains("cuts the peak after the outage from 1000 to "), "{text}");
    }

    #[test]
    fn no_difference_by_jitter_is_reported() {
        let text = conclusion(webhook(5, Jitter::TEN_PERCENT), 10, 500, 1000);
        assert!(text.starts_with("Jitter leaves the peak after the outage at 10 attempts/s"), "{text}");
    }

    #[test]
    fn a_loss_by_jitter_is_reported() {
        // Full jitter halves the delays on average: four attempts end before the outage does.
        let text = conclusion(webhook(5, Jitter::Full), 50, 13_000, 1000);
        assert!(text.starts_with("Jitter delivers only "), "{text}");
        assert!(text.contains("of 50 events instead of 50"), "{text}");
    }

    #[test]
    fn a_policy_without_jitter_is_compared_with_full_jitter() {
        let text = conclusion(webhook(9, Jitter::None), 1000, 30_000, 100);
        assert!(text.starts_with("Full jitter delivers all 1000 events instead of "), "{text}");
        assert!(text.ends_with("Add --jitter full."), "{text}");
    }
}
