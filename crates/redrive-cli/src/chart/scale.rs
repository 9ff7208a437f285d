//! Maps values to positions on an axis and selects the ticks.

pub(crate) const SECOND: u64 = 1000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// Distances between ticks on an axis of time, in milliseconds.
#[rustfmt::skip]
const TIME_STEPS: [u64; 30] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND, MINUTE,
    2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
    2 * DAY, 5 * DAY, 10 * DAY,
];
/// Ticks on a logarithmic axis of time: round numbers about a factor of ten apart.
#[rustfmt::skip]
const TIME_LANDMARKS: [u64; 16] = [
    1, 10, 100, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 10 * HOUR, 4 * DAY, 40 * DAY, 365 * DAY, 3650 * DAY,
    36_500 * DAY, 365_000 * DAY, 3_650_000 * DAY,
];

/// Maps a value to a position from 0 to 1.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Scale {
    /// From zero to `max`.
    Linear {
        /// Value at position 1.
        max: u64,
    },
    /// Zero at 0, then logarithmic from `min` to `max`, so that a second and an hour are both visible.
    Log {
        /// Start of the logarithmic part.
        min: u64,
        /// Value at position 1.
        max: u64,
    },
}

/// Share of a logarithmic axis between zero and its smallest value.
const ZERO_GAP: f64 = 0.06;

impl Scale {
    /// Linear if the smallest value is visible next to the largest, else logarithmic.
    pub(crate) fn of_range(smallest: u64, largest: u64) -> Self {
        let (min, max) = (smallest.max(1), largest.max(1));
        if max / min > 100 { Scale::Log { min, max } } else { Scale::Linear { max } }
    }

    #[allow(clippy::cast_precision_loss)] // a position on a picture
    pub(crate) fn position(self, value: u64) -> f64 {
        match self {
            Scale::Linear { max } => value as f64 / max.max(1) as f64,
            Scale::Log { .. } if value == 0 => 0.0,
            Scale::Log { min, max } => {
                let (low, high) = ((min as f64).ln(), (max as f64).ln());
                let along = ((value as f64).ln() - low) / (high - low).max(f64::EPSILON);
                (ZERO_GAP + (1.0 - ZERO_GAP) * along).max(ZERO_GAP / 2.0)
            }
        }
    }

    pub(crate) fn is_log(self) -> bool {
        matches!(self, Scale::Log { .. })
    }

    /// Ticks of a time axis: about `wanted` on a linear one, the landmarks on a logarithmic one.
    pub(crate) fn time_ticks(self, wanted: u64) -> Vec<u64> {
        match self {
            Scale::Linear { max } => multiples(time_step(max, wanted), max),
            Scale::Log { min, max } => {
                let landmarks = TIME_LANDMARKS.into_iter().filter(|t| (min..=max).contains(t));
                std::iter::once(0).chain(landmarks).collect()
            }
        }
    }
}

fn time_step(max: u64, wanted: u64) -> u64 {
    let least = max.div_ceil(wanted.max(1));
    let listed = TIME_STEPS.into_iter().find(|step| *step >= least);
    listed.unwrap_or_else(|| DAY * count_step(least.div_ceil(DAY), 1))
}

/// Distance between ticks for counts: 1, 2 or 5 times a power of ten, at most about `wanted` up to `max`.
pub(crate) fn count_step(max: u64, wanted: u64) -> u64 {
    let least = max.div_ceil(wanted.max(1)).max(1);
    let mut power: u64 = 1;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step >= least {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Zero, the step and its multiples up to `max`.
pub(crate) fn multiples(step: u64, max: u64) -> Vec<u64> {
    (0..=max / step).map(|n| n * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_as_many_as_requested() {
        assert_eq!(Scale::Linear { max: 16_500 }.time_ticks(6), [0, 5000, 10_000, 15_000]);
        assert_eq!(Scale::Linear { max: 0 }.time_ticks(6), [0]);
        assert_eq!(
            Scale::Linear { max: 90_000 }.time_ticks(6),
            [0, 15, 30, 45, 60, 75, 90].map(|s| s * SECOND)
        );
        assert_eq!(count_step(1000, 4), 500);
        assert_eq!(count_step(1, 4), 1);
        for max in [1, 999, 54_321, 10u64.pow(12), 40 * 10u64.pow(15)] {
            let ticks = Scale::Linear { max }.time_ticks(6);
            assert!((1..=8).contains(&ticks.len()), "{max}: {ticks:?}");
        }
        assert!(count_step(u64::MAX, 1) > 0, "terminates");
    }

    #[test]
    fn a_second_and_an_hour_are_both_visible() {
        let scale = Scale::of_range(1000, 3_600_000);
        assert!(scale.is_log());
        assert!(scale.position(0) < scale.position(1000));
        assert!((scale.position(1000) - ZERO_GAP).abs() < 1e-9);
        assert!((scale.position(3_600_000) - 1.0).abs() < 1e-9);
        assert_eq!(scale.time_ticks(6), [0, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR]);
        assert!(!Scale::of_range(1000, 16_000).is_log());
        assert!(!Scale::of_range(0, 0).is_log());
    }
}
