//! Jitter: the random part of a delay.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::{format_duration, parse_duration};
use crate::macros::stored_as_text;
use crate::policy::PolicyError;
use crate::ratio::Ratio;
use crate::timestamp::saturating_millis;

/// Random part of a delay. It spreads retries of operations that failed at the same time.
///
/// Written as text: `none`, `10%`, `0..1s`, `full`, `equal`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Jitter {
    /// No jitter.
    None,
    /// `delay ± share · delay`, never above the cap.
    Proportional(Ratio),
    /// `delay + 0..=amount`, on top of the capped delay.
    Additive(Duration),
    /// `0..=delay`.
    Full,
    /// `delay/2 ..= delay`.
    Equal,
}

impl Jitter {
    /// ±10 %, the default of most presets.
    pub const TEN_PERCENT: Jitter = Jitter::Proportional(Ratio::from_millionths(100_000));

    /// Creates proportional jitter: a factor of 0.1 is ±10 %.
    pub fn proportional(factor: f64) -> Result<Self, PolicyError> {
        let ratio = Ratio::from_f64(factor).filter(|ratio| *ratio <= Ratio::ONE);
        ratio.map(Jitter::Proportional).ok_or(PolicyError::JitterFactor { factor })
    }

    /// Interval of delays around `nominal`, both ends included. Proportional jitter stays below `cap`.
    pub(crate) fn spread(self, nominal: u64, cap: u64) -> (u64, u64) {
        match self {
            Jitter::None => (nominal, nominal),
            Jitter::Proportional(ratio) => {
                let width = ratio.of(nominal);
                (nominal.saturating_sub(width), nominal.saturating_add(width).min(cap.max(nominal)))
            }
            Jitter::Additive(amount) => (nominal, nominal.saturating_add(saturating_millis(amount))),
            Jitter::Full => (0, nominal),
            Jitter::Equal => (nominal / 2, nominal),
        }
    }

    /// Width of the jitter above a minimum that the destination requested.
    pub(crate) fn width_above(self, minimum: u64, nominal: u64) -> u64 {
        match self {
            Jitter::None => 0,
            Jitter::Proportional(ratio) => ratio.of(minimum),
            Jitter::Additive(amount) => saturating_millis(amount),
            Jitter::Full => nominal,
            Jitter::Equal => nominal / 2,
        }
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Jitter::None => f.write_str("none"),
            Jitter::Proportional(ratio) => write!(f, "{}%", ratio.percent()),
            Jitter::Additive(amount) => write!(f, "0..{}", format_duration(*amount)),
            Jitter::Full => f.write_str("full"),
            Jitter::Equal => f.write_str("equal"),
        }
    }
}

impl FromStr for Jitter {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let unreadable = || PolicyError::JitterText { text: text.chars().take(64).collect() };
        match text.trim() {
            "none" => Ok(Jitter::None),
            "full" => Ok(Jitter::Full),
            "equal" => Ok(Jitter::Equal),
            other => {
                if let Some(number) = other.trim_start_matches('±').strip_suffix('%') {
                    let percent: f64 = number.trim().parse().map_err(|_| unreadable())?;
                    return Jitter::proportional(percent / 100.0);
                }
                let amount = other.strip_prefix("0..").ok_or_else(unreadable)?;
                Ok(Jitter::Additive(parse_duration(amount).map_err(|_| unreadable())?))
            }
        }
    }
}

stored_as_text!(Jitter, PolicyError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_a_round_trip_through_text() {
        for (text, jitter) in [
            ("none", Jitter::None),
            ("10%", Jitter::TEN_PERCENT),
            ("12.5%", Jitter::proportional(0.125).unwrap()),
            ("0..1s", Jitter::Additive(Duration::from_secs(1))),
            ("full", Jitter::Full),
            ("equal", Jitter::Equal),
        ] {
            assert_eq!(text.parse::<Jitter>().unwrap(), jitter, "{text}");
            assert_eq!(jitter.to_string(), text);
        }
        assert_eq!("±10%".parse::<Jitter>().unwrap(), Jitter::TEN_PERCENT);
    }

    #[test]
    fn an_invalid_jitter_text_gets_an_error_with_the_valid_forms() {
        for text in ["", "10", "x%", "1s..2s", "0..", "FULL"] {
            let error = text.parse::<Jitter>().unwrap_err().to_string();
            assert!(error.contains("none, 10%, 0..1s, full, equal"), "{error}");
        }
        for text in ["101%", "NaN%", "inf%"] {
            assert!(matches!(text.parse::<Jitter>(), Err(PolicyError::JitterFactor { .. })), "{text}");
        }
    }
}
