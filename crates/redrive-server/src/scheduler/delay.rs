//! Parses a delay of the scheduler: a duration, or a bare number of milliseconds.

use std::time::Duration;

use redrive_retry::duration::parse_duration;

/// Parses a duration; a bare number is in milliseconds, as in the specified variables.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(Duration::from_millis).map_err(|_| "the duration is too long".to_owned());
    }
    parse_duration(text).map_err(|error| format!("{error}; a bare number is in milliseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_delay_is_in_milliseconds() {
        for (text, millis) in [("2000", 2000), ("2s", 2000), ("0", 0), ("1m", 60_000), (" 5 ", 5)] {
            assert_eq!(milliseconds(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1", "soon", "1.5", "99999999999999999999"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }
}
