//! What each receiver has got: endpoints, and whoever fetches.

use std::collections::BTreeMap;

use redrive::{BreakerSnapshot, Histogram, Metrics};

use super::family::{Family, Kind, Labels, Times};

/// So many have series of their own, the first by name. The rest shares those of [`OTHER`].
const MOST: usize = 1000;
const OTHER: &str = "(other)";

/// Upper bounds in microseconds: fewer than the bus counts in, because this is for every receiver.
const BOUNDS: [u64; 12] = [
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
    30_000_000,
];

/// Of one receiver, or of several together.
#[derive(Default)]
struct Got {
    /// By outcome, in the order of [`OUTCOMES`].
    outcomes: [u64; OUTCOMES.len()],
    /// By state, in the order of [`STATES`].
    circuits: [u64; STATES.len()],
    buckets: [u64; BOUNDS.len() + 1],
    sum_us: u64,
}

const OUTCOMES: [&str; 5] = ["done", "retry", "dead", "parked", "held"];
const STATES: [&str; 3] = ["closed", "open", "half_open"];

pub(super) fn families(metrics: &Metrics) -> [Family; 4] {
    let mut deliveries = Family::new(
        "redrive_deliveries_total",
        "Deliveries to a receiver, by what came of each try: done, retry, dead, parked (open circuit), held (no room).",
        Kind::Counter,
    );
    let mut durations = Family::new(
        "redrive_delivery_duration_seconds",
        "How long attempts to deliver to a receiver took.",
        Kind::Histogram,
    );
    let mut circuits =
        Family::new("redrive_circuit_state", "1 for the state of a receiver's circuit.", Kind::Gauge);
    let mut budgets =
        Family::new("redrive_budget_retries", "Retries that a receiver's budget has saved up.", Kind::Gauge);
    for (name, got) in gathered(metrics) {
        let with = |label: &'static str, value: &str| -> Labels {
            vec![("subscription", name.to_owned()), (label, value.to_owned())]
        };
        for (outcome, count) in OUTCOMES.iter().zip(got.outcomes) {
            deliveries = deliveries.with(with("outcome", outcome), count);
        }
        for (state, count) in STATES.iter().zip(got.circuits) {
            circuits = circuits.with(with("state", state), count);
        }
        let buckets = BOUNDS.iter().copied().map(Some).chain([None]).zip(got.buckets).collect();
        let times = Times { buckets, sum_us: got.sum_us };
        durations = durations.with_times(vec![("subscription", name.to_owned())], times);
    }
    for (name, retries) in metrics.budgets.iter().take(MOST) {
        budgets = budgets.with(vec![("subscription", name.clone())], u64::from(*retries));
    }
    [deliveries, durations, circuits, budgets]
}

fn gathered(metrics: &Metrics) -> BTreeMap<&str, Got> {
    let mut all = BTreeMap::<&str, Got>::new();
    for (place, (name, of_one)) in metrics.subscriptions.iter().enumerate() {
        let got = all.entry(if place < MOST { name } else { OTHER }).or_default();
        let outcomes = [of_one.done, of_one.retried, of_one.dead, of_one.parked, of_one.held];
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

impl Got {
    fn add(&mut self, histogram: &Histogram) {
        for bucket in &histogram.buckets {
            let place =
                bucket.up_to_us.map_or(BOUNDS.len(), |up_to| BOUNDS.partition_point(|bound| *bound < up_to));
            self.buckets[place] += bucket.count;
        }
        self.sum_us = self.sum_us.saturating_add(histogram.sum_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Value;

    fn metrics(receivers: usize) -> Metrics {
        let mut metrics = Metrics::default();
        for n in 0..receivers {
            let mut one = redrive::SubscriptionMetrics::default();
            one.done = 2;
            one.held = 1;
            let bucket = |up_to_us, count| redrive::Bucket { up_to_us, count };
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
    fn every_receiver_has_its_series() {
        let [deliveries, durations, circuits, _] = families(&metrics(2));
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
    fn however_many_there_are_the_page_is_bounded() {
        let [deliveries, durations, ..] = families(&metrics(MOST + 7));
        assert_eq!(durations.samples.len(), MOST + 1);
        let others = deliveries.samples.iter().find(|sample| sample.labels[0].1 == OTHER).unwrap();
        assert_eq!(others.value, Value::Number(14), "they are counted together");
    }
}
