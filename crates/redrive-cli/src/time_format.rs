//! Parses times given by people, and formats times relative to now.

use std::time::{Duration, SystemTime};

use redrive::retry::Timestamp;
use redrive_retry::duration::parse_duration;

use crate::format;

/// Now, by the system's clock.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Whole milliseconds of a duration.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// This long before now.
pub(crate) fn ago(age: Duration) -> Timestamp {
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now().as_millis().saturating_sub(age))
}

/// Reads an instant: `2026-01-31T12:00:00Z`, or `2h` for two hours ago.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    if let Ok(age) = parse_duration(text) {
        return Ok(ago(age));
    }
    text.parse().map_err(|_| {
        "use an age, such as 30m or 7d, or an instant in UTC, such as 2026-01-31T12:00:00Z".to_owned()
    })
}

/// Distance of an instant from now: `3s ago`, `in 5m`, `just now`.
pub(crate) fn relative(to: Timestamp, now: Timestamp) -> String {
    if to > now { format!("in {}", coarse(to.since(now))) } else { coarse_ago(now.since(to)) }
}

/// Time since an instant, for a narrow column: `3s`.
pub(crate) fn age(of: Timestamp) -> String {
    coarse(now().since(of))
}

fn coarse_ago(age: Duration) -> String {
    if age < Duration::from_secs(1) { "just now".to_owned() } else { format!("{} ago", coarse(age)) }
}

/// The largest whole unit only, as a list needs it.
fn coarse(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format::duration(millis(time)),
        1..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_short() {
        let now = Timestamp::from_millis(1_000_000_000);
        let back = |millis: i64| relative(Timestamp::from_millis(1_000_000_000 - millis), now);
        assert_eq!(back(0), "just now");
        assert_eq!(back(61_000), "61s ago");
        assert_eq!(back(3_700_000), "61m ago");
        assert_eq!(back(200_000_000), "2d ago");
        assert_eq!(back(-5000), "in 5s");
        assert_eq!(back(-50), "in 50ms");
    }

    #[test]
    fn an_instant_is_an_age_or_a_date() {
        assert_eq!(parse("1970-01-01T00:00:01Z").unwrap(), Timestamp::from_millis(1000));
        let ago = parse("1h").unwrap();
        let hour = now().since(ago);
        assert!(hour >= Duration::from_secs(3600) && hour < Duration::from_secs(3660), "{hour:?}");
        assert!(parse("yesterday").unwrap_err().contains("such as 30m"));
    }
}
