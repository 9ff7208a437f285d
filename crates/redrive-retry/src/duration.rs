//! Parser and formatter of human-readable durations: `"250ms"`, `"1s"`, `"1h 30m"`.

use std::time::Duration;

use crate::timestamp::saturating_millis;

/// Parses `"250ms"`, `"1s"`, `"1h 30m"`, `"0"`. Refuses fractions of a millisecond.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    let error = |why: String| DurationError { text: text.chars().take(64).collect(), why };
    let duration = humantime::parse_duration(trimmed).map_err(|e| error(e.to_string()))?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(error("delays are whole milliseconds".into()));
    }
    Ok(duration)
}

/// Formats whole milliseconds so that [`parse_duration`] returns an equal value.
pub fn format_duration(duration: Duration) -> String {
    humantime::format_duration(Duration::from_millis(saturating_millis(duration))).to_string()
}

/// Text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration ({why}): write a number with a unit, such as 250ms, 1s, 5m or 1h")]
pub struct DurationError {
    text: String,
    why: String,
}

/// Serde form of a `Duration` field: human-readable text.
pub(crate) mod text {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        parse_duration(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_notations_are_parsed() {
        for (text, millis) in [
            ("250ms", 250),
            ("1s", 1000),
            ("1h", 3_600_000),
            ("1m 30s", 90_000),
            ("0", 0),
            (" 2s ", 2000),
            ("1.5s", 1500),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused_with_examples() {
        for text in ["", "1", "-1s", "1 parsec", "10us", "1.0005s", "99999999999999999999999s"] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains("such as 250ms, 1s"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_formatted_duration_parses_to_the_same_value(millis in 0u64..=u64::MAX / 1000) {
            let duration = Duration::from_millis(millis);
            proptest::prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
