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
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let (year, month, day) = three(date, '-')?;
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let (hour, minute, second) = three(clock, ':')?;
    let offset = offset_minutes(zone)?;
    let days = days_since_epoch(year, month, day)?;
    // A leap second counts as the last second of its minute.
    if hour > 23 || minute > 59 || second > 60 || clock.len() != 8 || date.len() != 10 {
        return None;
    }
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second.min(59);
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    Some(Timestamp::from_millis((seconds * 1000 + millis).max(0)))
}

fn three(text: &str, between: char) -> Option<(i64, i64, i64)> {
    let mut parts = text.split(between).map(number);
    let parts = (parts.next()??, parts.next()??, parts.next()??);
    (text.split(between).count() == 3).then_some(parts)
}

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

/// Howard Hinnant's `days_from_civil`.
fn days_since_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let cycle = year.div_euclid(400);
    let year_of_cycle = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(cycle * 146_097 + year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + of_year - 719_468)
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
