//! Times as RFC 3339: written in UTC, read with any offset.

use redrive_retry::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, in milliseconds.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Time(at)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        parse(&text).map(Time).ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            serde::de::Error::custom(format!(
                "{text:?} is not a time: use RFC 3339, such as 2026-01-31T12:00:00Z"
            ))
        })
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for Time {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339"))
            .examples([serde_json::json!("2026-01-31T12:00:00.050Z")])
            .into()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for Time {}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads `2026-01-31T12:00:00.050+01:00`. Times before 1970 become 1970.
fn parse(text: &str) -> Option<Timestamp> {
    let seconds_end = "2026-01-31T12:00:00".len();
    let zone = seconds_end + text.get(seconds_end..)?.find(['Z', 'z', '+', '-'])?;
    let (local, zone) = text.split_at(zone);
    let (date, clock) = local.split_once(['T', 't', ' '])?;
    let (year, day) = (number(date.get(..4)?)?, date.get(4..)?);
    if clock.ends_with('.') {
        return None;
    }
    // A timestamp is read from 1970 on. The calendar repeats after 400 years, so an earlier year is read as one of the next cycles.
    let cycles = if year < 1970 { 5 } else { 0 };
    let as_utc = format!("{:04}{day}T{clock}Z", year + cycles * 400).parse::<Timestamp>().ok()?;
    let millis = as_utc.as_millis() - cycles * DAYS_OF_400_YEARS * DAY_MS - offset_minutes(zone)? * 60_000;
    Some(Timestamp::from_millis(millis.max(0)))
}

const DAYS_OF_400_YEARS: i64 = 146_097;
const DAY_MS: i64 = 86_400_000;

fn number(text: &str) -> Option<i64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn offset_minutes(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let is_offset = zone.len() == 6 && hours < 24 && minutes < 60;
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    is_offset.then_some(sign * (hours * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_any_offset_are_read() {
        let same = "2026-01-31T12:00:00.050Z".parse::<Timestamp>().unwrap();
        for text in [
            "2026-01-31T12:00:00.050Z",
            "2026-01-31t12:00:00.0509z",
            "2026-01-31T13:00:00.05+01:00",
            "2026-01-30T23:30:00.050-12:30",
            "2026-02-01 00:00:00.050+12:00",
        ] {
            assert_eq!(parse(text), Some(same), "{text}");
        }
        for year in [1970, 1999, 2000, 2023, 2024, 2100, 9999] {
            for (month, day) in [(1, 1), (2, 28), (3, 1), (12, 31)] {
                let text = format!("{year}-{month:02}-{day:02}T23:59:59Z");
                assert_eq!(parse(&text), text.parse().ok(), "{text}");
            }
        }
        assert_eq!(parse("1963-06-19T08:30:06Z"), Some(Timestamp::EPOCH));
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2016-12-31T23:59:59Z"));
    }

    #[test]
    fn malformed_times_are_refused() {
        for text in [
            "",
            "2026",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T12:00Z",
            "2026-1-31T12:00:00Z",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00+1:00",
            "2026-01-31T12:00:00+25:00",
            "2026-01-31T12:00:00ZZ",
            "x",
            "2026-01-31T12:00:00+é",
            "2026-01-31T+2:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
