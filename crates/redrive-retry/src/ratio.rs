//! [`Ratio`]: a share or factor in whole millionths, which survives serialisation exactly.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Non-negative number with six decimals, at most 4,294: `0.1` is ten percent, `2.0` doubles.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio {
    millionths: u32,
}

const ONE: u32 = 1_000_000;

impl Ratio {
    /// The ratio 1.
    pub const ONE: Ratio = Ratio { millionths: ONE };

    /// Creates a ratio from whole millionths.
    pub const fn from_millionths(millionths: u32) -> Self {
        Ratio { millionths }
    }

    /// Rounds to the nearest millionth; `None` for NaN, negative and too large numbers.
    pub fn from_f64(value: f64) -> Option<Self> {
        let millionths = (value * f64::from(ONE)).round();
        if !(0.0..=f64::from(u32::MAX)).contains(&millionths) {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // just checked
        Some(Ratio { millionths: millionths as u32 })
    }

    /// Nearest float, so that it prints as it was written.
    pub fn as_f64(self) -> f64 {
        f64::from(self.millionths) / f64::from(ONE)
    }

    /// Whole millionths.
    pub const fn millionths(self) -> u32 {
        self.millionths
    }

    /// This share of `amount`, rounded down, saturating.
    pub(crate) fn of(self, amount: u64) -> u64 {
        let share = u128::from(amount) * u128::from(self.millionths) / u128::from(ONE);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    pub(crate) fn percent(self) -> f64 {
        f64::from(self.millionths) / f64::from(ONE / 100)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}

impl TryFrom<f64> for Ratio {
    type Error = RatioError;

    fn try_from(value: f64) -> Result<Self, RatioError> {
        Ratio::from_f64(value).ok_or(RatioError { value })
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> f64 {
        ratio.as_f64()
    }
}

/// A number outside the range of a ratio.
#[derive(Copy, Clone, Debug, PartialEq, thiserror::Error)]
#[error("{value} is not a ratio: write a number from 0 to 4294, such as 0.1 or 2")]
pub struct RatioError {
    value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 4295.0, f64::MAX] {
            assert_eq!(Ratio::from_f64(value), None, "{value}");
        }
        assert_eq!(Ratio::from_f64(-1e-12).map(Ratio::millionths), Some(0), "rounds to zero, not below");
    }

    proptest::proptest! {
        #[test]
        fn survives_json_to_the_last_bit(millionths: u32) {
            let ratio = Ratio { millionths };
            let text = serde_json::to_string(&ratio).unwrap();
            let back: Ratio = serde_json::from_str(&text).unwrap();
            proptest::prop_assert_eq!(back, ratio);
            proptest::prop_assert_eq!(serde_json::to_string(&back).unwrap(), text);
        }
    }
}
