//! Delivery metrics per subscription: endpoints and pull consumers.

use std::collections::BTreeMap;

use redrive::metrics::{Histogram, Metrics};
use redrive::retry::breaker::BreakerSnapshot;

use crate::metric_family::{Family, Kind, Labels, Times};

/// Subscriptions with series of their own, the first by name. The rest shares the series [`OTHER`].
const MAX_SERIES: usize = 1000;
const OTHER: &str = "(other)";

/// Upper bounds of the buckets: fewer than those of the bus, because every subscription has its own.
const BOUNDS_US: [u64; 12] = [
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
    30_000_000,
];

/// Counters of one subscription, or of [`OTHER`].
#[derive(Default)]
struct Counters {
    /// By outcome, in the order of [`OUTCOMES`].
    outcomes: [u64; OUTCOMES.len()],
    /// By state, in the order of [`STATES`].
    circuits: [u64; STATES.len()],
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

const OUTCOMES: [&str; 5] = ["done", "retry", "dead", "parked", "backlogged"];
const STATES: [&str; 3] = ["closed", "open", "half_open"];

pub(super) fn families(metrics: &Metrics) -> [Family; 5] {
    let mut deliveries = Family::new(
        "redrive_deliveries_total",
        "Deliveries of a subscription, by outcome: done, retry, dead, parked (open circuit or snooze), backlogged (over a limit).",
        Kind::Counter,
    );
    let mut durations = Family::new(
        "redrive_delivery_duration_seconds",
        "Duration of delivery attempts of a subscription.",
        Kind::Histogram,
    );
    let mut circuits = Family::new(
        "redrive_circuit_state",
        "State of a subscription's circuit: 1 for the current state.",
        Kind::Gauge,
    );
    let mut budgets =
        Family::new("redrive_budget_retries", "Retries left in a subscription's retry budget.", Kind::Gauge);
    for (name, got) in by_subscription(metrics) {
        let with = |label: &'static str, value: &str| -> Labels {
            vec![("subscription", name.to_owned()), (label, value.to_owned())]
        };
        for (outcome, count) in OUTCOMES.iter().zip(got.outcomes) {
            deliveries = deliveries.with(with("outcome", outcome), count);
        }
        for (state, count) in STATES.iter().zip(got.circuits) {
            circuits = circuits.with(with("state", state), count);
        }
        let buckets = BOUNDS_US.iter().copied().map(Some).chain([None]).zip(got.buckets).collect();
        let times = Times { buckets, sum_us: got.sum_us };
        durations = durations.with_times(vec![("subscription", name.to_owned())], times);
    }
    for (name, retries) in metrics.budgets.iter().take(MAX_SERIES) {
        budgets = budgets.with(vec![("subscription", name.clone())], u64::from(*retries));
    }
    let reduced = Family::new(
        "redrive_reduced_rate",
        "Attempts per second to which an overloaded receiver has reduced a subscription; only reduced ones.",
        Kind::Gauge,
    );
    let reduced = metrics.reduced_rates.iter().take(MAX_SERIES).fold(reduced, |family, (name, rate)| {
        family.with_decimal(vec![("subscription", name.clone())], *rate)
    });
    [deliveries, durations, circuits, budgets, reduced]
}

fn by_subscription(metrics: &Metrics) -> BTreeMap<&str, Counters> {
    let mut all = BTreeMap::<&str, Counters>::new();
    for (index, (name, of_one)) in metrics.subscriptions.iter().enumerate() {
        let got = all.entry(if index < MAX_SERIES { name } else { OTHER }).or_default();
        let outcomes = [of_one.done, of_one.retried, of_one.dead, of_one.parked, of_one.backlogged];
        for (sum, count) in got.outcomes.iter_mut().zip(outcomes) {
            *sum += count;
        }
        let state = match metrics.breakers.get(name) {
            None | Some(BreakerSnapshot::Closed) => 0,
            Some(BreakerSnapshot::Open { .. }) => 1,
            Some(BreakerSnapshot::HalfOpen { .. }) => 2,
        };
        got.circuits[state] += 1;
        got.add(&of_one.duration);
    }
    all
}

impl Counters {
    fn add(&mut self, histogram: &Histogram) {
        for bucket in &histogram.buckets {
            let index = bucket
                .up_to_us
                .map_or(BOUNDS_US.len(), |up_to| BOUNDS_US.partition_point(|bound| *bound < up_to));
            self.buckets[index] += bucket.count;
        }
        self.sum_us = self.sum_us.saturating_add(histogram.sum_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric_family::Value;

    fn metrics(subscriptions: usize) -> Metrics {
        let mut metrics = Metrics::default();
        for n in 0..subscriptions {
            let mut one = redrive::metrics::SubscriptionMetrics::default();
            one.done = 2;
            one.backlogged = 1;
            let bucket = |up_to_us, count| redrive::metrics::Bucket { up_to_us, count };
            one.duration = Histogram {
                count: 4,
                sum_us: 40,
                buckets: vec![
                    bucket(Some(2_500), 1),
                    bucket(Some(5_000), 1),
                    bucket(Some(10_000), 1),
                    bucket(None, 1),
                ],
            };
            metrics.subscriptions.insert(format!("ep_{n:05}"), one);
        }
        metrics
    }

    #[test]
    fn every_subscription_has_its_series() {
        let [deliveries, durations, circuits, ..] = families(&metrics(2));
        assert_eq!((deliveries.samples.len(), circuits.samples.len(), durations.samples.len()), (10, 6, 2));
        let first = &deliveries.samples[0];
        assert_eq!(first.labels, [("subscription", "ep_00000".to_owned()), ("outcome", "done".to_owned())]);
        assert_eq!(first.value, Value::Number(2));
        let Value::Times(times) = &durations.samples[0].value else { panic!("{durations:?}") };
        assert_eq!(
            (&times.buckets[..3], times.sum_us),
            (&[(Some(5_000), 2), (Some(10_000), 1), (Some(25_000), 0)][..], 40)
        );
        assert_eq!(times.buckets.last(), Some(&(None, 1)));
    }

    #[test]
    fn only_reduced_subscriptions_have_a_reduced_rate() {
        let mut metrics = metrics(2);
        metrics.reduced_rates.insert("ep_00001".to_owned(), 7.25);
        let [.., reduced] = families(&metrics);
        assert_eq!(reduced.samples.len(), 1);
        assert_eq!(reduced.samples[0].labels, [("subscription", "ep_00001".to_owned())]);
        assert_eq!(reduced.samples[0].value, Value::Decimal(7.25));
    }

    #[test]
    fn subscriptions_beyond_the_limit_share_one_series() {
        let [deliveries, durations, ..] = families(&metrics(MAX_SERIES + 7));
        assert_eq!(durations.samples.len(), MAX_SERIES + 1);
        let others = deliveries.samples.iter().find(|sample| sample.labels[0].1 == OTHER).unwrap();
        assert_eq!(others.value, Value::Number(14), "the sum of the seven");
    }
}
