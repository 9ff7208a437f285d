use super::*;
use proptest::prelude::*;

fn simulation(policy: RetryPolicy, events: u64, outage_s: u64, capacity: u64) -> Simulation {
    Simulation {
        policy,
        events,
        outage: Duration::from_secs(outage_s),
        capacity_per_second: capacity,
        seed: 1,
    }
}

fn webhook(attempts: u32, jitter: Jitter) -> RetryPolicy {
    let webhook = RetryPolicy::webhook().to_builder();
    webhook.max_attempts(attempts).jitter(jitter).build().unwrap()
}

#[test]
fn without_jitter_all_retries_are_simultaneous() {
    let result = simulation(webhook(5, Jitter::None), 1000, 60, 100).run().unwrap();
    assert_eq!((result.delivered, result.dead, result.attempts), (0, 1000, 5000));
    assert_eq!(result.peak_per_second, 1000);
    assert_eq!(result.peak_after_outage_per_second, 0, "the last attempt is at 15 s");
    assert_eq!(result.settled_ms, 15_000);
    assert_eq!((result.last_delivery_ms, result.p50_ms, result.p95_ms), (None, None, None));
    let waves: Vec<(u64, u64)> = (0..)
        .map(|bucket| bucket * result.series.bucket_ms)
        .zip(result.series.attempts.iter().copied())
        .filter(|(_, attempts)| *attempts > 0)
        .collect();
    assert_eq!(waves, [0, 1000, 3000, 7000, 15_000].map(|at| (at, 1000)));
}

/// Numbers of the example in the specification of webhook retries.
#[test]
fn ten_percent_of_jitter_spreads_the_first_and_the_second_retries_of_a_thousand_events() {
    let result = simulation(webhook(3, Jitter::TEN_PERCENT), 1000, 60, 100).run().unwrap();
    let width = result.series.bucket_ms;
    let retries = |from: u64, to: u64| -> Vec<u64> {
        let buckets = (0..).map(|bucket| bucket * width).zip(result.series.attempts.iter().copied());
        buckets.filter(|(at, _)| at + width > from && *at <= to).map(|(_, attempts)| attempts).collect()
    };
    for (from, to) in [(900, 1100), (2700, 3300)] {
        let found = retries(from, to);
        assert_eq!(found.iter().sum::<u64>(), 1000, "all retries lie within {from} to {to} ms: {found:?}");
        let first = found.iter().position(|attempts| *attempts > 0).unwrap() as u64;
        let last = found.iter().rposition(|attempts| *attempts > 0).unwrap() as u64;
        assert!((last - first + 1) * width >= (to - from) * 9 / 10, "over the whole range: {found:?}");
        assert!(found.iter().all(|attempts| *attempts < 500), "at different times: {found:?}");
    }
}

#[test]
fn simultaneous_retries_deliver_only_the_burst() {
    // Retries at 0, 1, 3, 7 and 15 s; the destination accepts a burst of ten at 7 s and at 15 s.
    let result = simulation(webhook(5, Jitter::None), 1000, 5, 100).run().unwrap();
    assert_eq!((result.delivered, result.dead), (20, 980));
    assert_eq!(result.rejected, 990 + 980);
    assert_eq!(result.last_delivery_ms, Some(15_000));
    assert_eq!(result.p50_ms, Some(7000));
}

#[test]
fn jitter_lowers_the_peak_and_delivers_more() {
    let both = simulation(webhook(8, Jitter::Full), 1000, 30, 100).compare().unwrap();
    let (with, without) = (&both.with_jitter, &both.without_jitter);
    assert_eq!(without.peak_after_outage_per_second, 1000);
    assert!(with.peak_after_outage_per_second < 200, "{}", with.peak_after_outage_per_second);
    assert!(with.delivered > 10 * without.delivered, "{} {}", with.delivered, without.delivered);
    assert_eq!(with.series.bucket_ms, without.series.bucket_ms);
    assert_eq!(with.series.attempts.len(), without.series.attempts.len());
}

#[test]
fn a_policy_without_jitter_is_compared_with_assumed_full_jitter() {
    for jitter in [Jitter::None, Jitter::proportional(0.0).unwrap(), Jitter::Additive(Duration::ZERO)] {
        let both = simulation(webhook(3, jitter), 10, 1, 100).compare().unwrap();
        assert_eq!((both.jitter, both.assumed), (Jitter::Full, true));
        let plain = simulation(webhook(3, Jitter::None), 10, 1, 100).run().unwrap();
        assert_eq!(both.without_jitter.attempts, plain.attempts);
    }
    let both = simulation(webhook(3, Jitter::Equal), 10, 1, 100).compare().unwrap();
    assert_eq!((both.jitter, both.assumed), (Jitter::Equal, false));
}

/// The attempts of a single event follow the policy's delays for its identity.
#[test]
fn simulated_delays_equal_the_policys_delays() {
    let policy = webhook(6, Jitter::Full);
    let result = simulation(policy.clone(), 1, 3600, 1).run().unwrap();
    let waits = policy.delays(Identity::new(1, "0", "simulation"));
    assert_eq!(result.settled_ms, millis(waits.sum::<Duration>()));
}

#[test]
fn a_deadline_counts_from_the_first_attempt() {
    let policy = webhook(8, Jitter::None).to_builder().deadline(Duration::from_secs(10)).build().unwrap();
    let result = simulation(policy, 3, 3600, 1).run().unwrap();
    assert_eq!((result.dead, result.most_attempts), (3, 4), "0, 1, 3 and 7 s, not 15 s");
}

#[test]
fn without_outage_and_with_capacity_every_event_is_delivered_at_once() {
    let result = simulation(RetryPolicy::bus(), 100, 0, 1000).run().unwrap();
    assert_eq!((result.delivered, result.attempts, result.peak_per_second), (100, 100, 0));
    assert_eq!((result.settled_ms, result.p95_ms), (0, Some(0)));
    assert_eq!(result.series.attempts, [100]);
}

#[test]
fn every_limit_says_what_to_change() {
    let good = simulation(RetryPolicy::bus(), 10, 1, 1);
    let cases = [
        (Simulation { events: 0, ..good.clone() }, "choose from 1 to 1000000"),
        (Simulation { events: 1_000_001, ..good.clone() }, "choose from 1 to 1000000"),
        (Simulation { events: u64::MAX, ..good.clone() }, "choose from 1 to 1000000"),
        (simulation(webhook(21, Jitter::Full), 1_000_000, 1, 1), "events to 952380"),
        (Simulation { outage: RetryPolicy::MAX_DURATION * 2, ..good.clone() }, "longer than a year: shorten"),
        (Simulation { capacity_per_second: 0, ..good }, "set it to 1 or more"),
    ];
    for (simulation, hint) in cases {
        for error in [simulation.run().unwrap_err(), simulation.compare().unwrap_err()] {
            assert!(error.to_string().contains(hint), "{error} lacks {hint}");
        }
    }
}

#[test]
fn percentiles_are_values_that_occurred() {
    let values: Vec<u64> = (1..=20).collect();
    let at = |percent| percentile(&values, percent);
    assert_eq!((at(50), at(95), at(100)), (Some(10), Some(19), Some(20)));
    assert_eq!(percentile(&[7], 50), Some(7));
    assert_eq!(percentile(&[], 50), None);
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    let jitter = prop_oneof![
        Just(Jitter::None),
        Just(Jitter::TEN_PERCENT),
        Just(Jitter::Additive(Duration::from_secs(1))),
        Just(Jitter::Full),
        Just(Jitter::Equal),
    ];
    (1u32..12, 0u64..5000, 0u64..100_000, 1.0f64..4.0, jitter).prop_map(
        |(attempts, base, extra, multiplier, jitter)| {
            RetryPolicy::builder()
                .max_attempts(attempts)
                .base_delay(Duration::from_millis(base))
                .max_delay(Duration::from_millis(base + extra))
                .multiplier(multiplier)
                .jitter(jitter)
                .build()
                .unwrap()
        },
    )
}

proptest! {
    #[test]
    fn every_event_is_accounted_for_and_a_seed_replays(
        policy in any_policy(), events in 1u64..300, outage in 0u64..200_000, capacity in 1u64..500, seed: u64,
    ) {
        let simulation = Simulation {
            policy,
            events,
            outage: Duration::from_millis(outage),
            capacity_per_second: capacity,
            seed,
        };
        let both = simulation.compare().unwrap();
        for result in [&both.with_jitter, &both.without_jitter] {
            prop_assert_eq!(result.delivered + result.dead, events);
            prop_assert!(result.most_attempts <= simulation.policy.max_attempts());
            prop_assert!(result.attempts <= events * u64::from(simulation.policy.max_attempts()));
            prop_assert!(result.peak_after_outage_per_second <= result.peak_per_second);
            prop_assert!(result.p50_ms <= result.p95_ms && result.p95_ms <= result.last_delivery_ms);
            prop_assert!(result.last_delivery_ms.is_none_or(|last| last <= result.settled_ms && last >= outage));
            prop_assert_eq!(result.series.attempts.iter().sum::<u64>(), result.attempts);
            prop_assert_eq!(result.series.delivered.iter().sum::<u64>(), result.delivered);
            prop_assert_eq!(result.series.rejected.iter().sum::<u64>(), result.rejected);
            prop_assert!(result.series.attempts.len() <= 240);
            // The destination never accepts more than its capacity and one burst.
            if let Some(last) = result.last_delivery_ms {
                let up = last - outage;
                prop_assert!(result.delivered <= up * capacity / 1000 + (capacity / 10).max(2));
            }
        }
        prop_assert_eq!(simulation.compare().unwrap(), both);
    }

    /// Holds only after the outage: full jitter shortens the first delays, so early retries may be closer together.
    #[test]
    fn jitter_lowers_the_peak_after_the_outage_for_every_seed(
        events in 200u64..1000, seed: u64, jitter in prop_oneof![Just(Jitter::TEN_PERCENT), Just(Jitter::Full), Just(Jitter::Equal)],
    ) {
        let simulation = Simulation { seed, ..simulation(webhook(7, jitter), events, 30, 10) };
        let both = simulation.compare().unwrap();
        prop_assert_eq!(both.without_jitter.peak_per_second, events);
        prop_assert_eq!(both.without_jitter.peak_after_outage_per_second, events);
        prop_assert!(both.with_jitter.peak_after_outage_per_second < events * 2 / 3);
    }
}
