//! HTTP responses: failure class of a status and parser of `Retry-After`.

use std::time::Duration;

use crate::class::FailureClass;
use crate::timestamp::Timestamp;

/// Failure class of an HTTP status; `None` for a success (2xx).
///
/// | status | class |
/// |---|---|
/// | 2xx | success |
/// | 408, 504 | timeout |
/// | 429; 503 with `Retry-After` | throttled |
/// | 421, 423, 425, and 5xx otherwise | transient |
/// | 302, 303, 307 (temporary redirects), 1xx | transient |
/// | 3xx otherwise, 4xx otherwise, 501, 505 | permanent |
///
/// A redirect is never followed: a POST would become a GET and be counted as delivered. A policy's rules
/// (`status:404` as retryable) override this table.
pub fn classify(status: u16, retry_after: Option<&str>, now: Timestamp) -> Option<FailureClass> {
    let wait = retry_after.and_then(|value| parse_retry_after(value, now));
    Some(match status {
        200..=299 => return None,
        408 | 504 => FailureClass::Timeout,
        429 => throttled(wait),
        503 if wait.is_some() => throttled(wait),
        501 | 505 => FailureClass::Permanent,
        302 | 303 | 307 | 421 | 423 | 425 | 500.. => FailureClass::Transient,
        300..=499 => FailureClass::Permanent,
        _ => FailureClass::Transient,
    })
}

/// A wait of zero, or until a time in the past, names no time at which the destination is ready again.
fn throttled(wait: Option<Duration>) -> FailureClass {
    match wait.filter(|wait| !wait.is_zero()) {
        Some(wait) => FailureClass::retry_after(wait),
        None => FailureClass::Throttled { retry_after: None },
    }
}

/// Parses a `Retry-After` header: seconds, or a date in any of the three HTTP formats.
///
/// A date in the past gives zero, an invalid value `None`.
pub fn parse_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // A number that overflows is a very long delay.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX / 1000)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(Timestamp::from(date).since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: u16) -> Option<FailureClass> {
        classify(status, None, Timestamp::EPOCH)
    }

    #[test]
    fn only_2xx_is_success() {
        for status in 0..=1000 {
            assert_eq!(class(status).is_none(), (200..300).contains(&status), "{status}");
        }
    }

    #[test]
    fn statuses_are_classified_as_documented() {
        let transient = [100, 302, 303, 307, 421, 423, 425, 500, 502, 503, 507, 599];
        assert!(transient.iter().all(|status| class(*status) == Some(FailureClass::Transient)));
        let permanent = [300, 301, 304, 308, 400, 401, 403, 404, 405, 409, 410, 413, 422, 451, 501, 505];
        assert!(permanent.iter().all(|status| class(*status) == Some(FailureClass::Permanent)));
        assert!([408, 504].iter().all(|status| class(*status) == Some(FailureClass::Timeout)));
        assert_eq!(class(429), Some(FailureClass::Throttled { retry_after: None }));
    }

    #[test]
    fn retry_after_throttles_429_and_503_in_seconds_and_as_a_date() {
        let now: Timestamp = "2026-11-06T08:49:00Z".parse().unwrap();
        for status in [429, 503] {
            for value in [
                "37",
                " 37 ",
                "Fri, 06 Nov 2026 08:49:37 GMT",
                "Friday, 06-Nov-26 08:49:37 GMT",
                "Fri Nov  6 08:49:37 2026",
            ] {
                let wait = classify(status, Some(value), now).unwrap().requested_wait();
                assert_eq!(wait, Some(Duration::from_secs(37)), "{status} {value}");
            }
        }
    }

    #[test]
    fn a_retry_after_of_zero_or_in_the_past_names_no_wait() {
        let now: Timestamp = "2026-11-06T08:49:37Z".parse().unwrap();
        for value in ["0", "000", "Fri, 06 Nov 2026 08:49:37 GMT", "Fri, 06 Nov 2026 08:00:00 GMT"] {
            for status in [429, 503] {
                let class = classify(status, Some(value), now);
                assert_eq!(class, Some(FailureClass::Throttled { retry_after: None }), "{status} {value}");
            }
        }
    }

    #[test]
    fn a_past_date_gives_zero_and_invalid_values_are_ignored() {
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(parse_retry_after("Fri, 06 Nov 2026 08:49:37 GMT", now), Some(Duration::ZERO));
        for value in ["", "-1", "1.5", "soon", "12 parsecs", "\u{661}"] {
            assert_eq!(parse_retry_after(value, now), None, "{value:?}");
        }
        assert!(parse_retry_after("99999999999999999999999999", now).unwrap() > Duration::from_secs(1 << 50));
    }

    proptest::proptest! {
        #[test]
        fn no_header_value_panics(value in ".{0,64}", now: i64) {
            let _ = parse_retry_after(&value, Timestamp::from_millis(now));
        }
    }
}
