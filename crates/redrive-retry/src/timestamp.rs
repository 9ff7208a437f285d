//! [`Timestamp`]: whole milliseconds since the Unix epoch, with saturating arithmetic.
//!
//! Milliseconds fit an SQL integer and survive JSON without loss.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch. Serialises as a plain integer; displays as RFC 3339.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// Latest instant of RFC 3339 (year 9999); later ones display as this one.
const MAX_RFC3339_MS: i64 = 253_402_300_799_999;

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// Creates a timestamp from milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Moves by milliseconds, back if they are negative; saturating.
    pub const fn shifted(self, millis: i64) -> Self {
        Timestamp(self.0.saturating_add(millis))
    }

    /// Adds milliseconds, saturating.
    pub fn plus_millis(self, millis: u64) -> Self {
        Timestamp(self.0.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        self.plus_millis(saturating_millis(duration))
    }
}

/// Whole milliseconds of a duration, saturating at `u64::MAX`.
pub(crate) fn saturating_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        // A clock before 1970 reads as the epoch.
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::EPOCH + since_epoch
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        let millis = u64::try_from(timestamp.0.clamp(0, MAX_RFC3339_MS)).unwrap_or(0);
        UNIX_EPOCH + Duration::from_millis(millis)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = SystemTime::from(*self);
        if self.0 % 1000 == 0 {
            humantime::format_rfc3339_seconds(time).fmt(f)
        } else {
            humantime::format_rfc3339_millis(time).fmt(f)
        }
    }
}

impl FromStr for Timestamp {
    type Err = humantime::TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_rfc3339(text).map(Timestamp::from)
    }
}

/// Serde form of audit events: RFC 3339 text.
pub(crate) mod rfc3339 {
    use super::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(timestamp: &Timestamp, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(timestamp)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(|e| D::Error::custom(format!("{text:?} is not an RFC 3339 time: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_rfc3339_with_a_fraction_only_if_there_is_one() {
        let whole: Timestamp = "2026-01-25T21:15:00Z".parse().unwrap();
        assert_eq!(whole.to_string(), "2026-01-25T21:15:00Z");
        assert_eq!(whole.plus_millis(50).to_string(), "2026-01-25T21:15:00.050Z");
    }

    #[test]
    fn arithmetic_saturates_instead_of_panicking() {
        let end = Timestamp::from_millis(i64::MAX);
        assert_eq!(end + Duration::MAX, end);
        assert_eq!(Timestamp::EPOCH.since(end), Duration::ZERO);
        assert_eq!(end.to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Timestamp::from_millis(-5).to_string(), "1970-01-01T00:00:00.000Z");
    }
}
