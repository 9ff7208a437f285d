//! Serialised form of policies: human-readable durations and the field names of all specifications.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{PolicyError, Preset, RetryOverride, RetryPolicy};
use crate::backoff::Growth;
use crate::duration::{format_duration, parse_duration};
use crate::jitter::Jitter;
use crate::rules::{ErrorRule, Rules};

/// Unchecked policy with all field names. Written under the first name of each field; read under any one of them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    preset: Option<Preset>,
    #[serde(
        alias = "maxAttempts",
        alias = "MaxAttempts",
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_whole"
    )]
    max_attempts: Option<f64>,
    #[serde(alias = "maxRetries", alias = "DEFAULT_MAX_RETRIES", skip_serializing)]
    max_retries: Option<f64>,
    #[serde(alias = "initial_interval", alias = "InitialInterval", skip_serializing_if = "Option::is_none")]
    base_delay: Option<Time>,
    #[serde(alias = "base_delay_ms", alias = "BASE_DELAY_MS", rename = "baseDelayMs", skip_serializing)]
    base_delay_ms: Option<f64>,
    #[serde(
        alias = "backoff_multiplier",
        alias = "backoffMultiplier",
        alias = "Multiplier",
        skip_serializing_if = "Option::is_none"
    )]
    multiplier: Option<f64>,
    #[serde(alias = "max_interval", alias = "MaxInterval", skip_serializing_if = "Option::is_none")]
    max_delay: Option<Time>,
    #[serde(alias = "max_delay_ms", alias = "MAX_DELAY_MS", rename = "maxDelayMs", skip_serializing)]
    max_delay_ms: Option<f64>,
    #[serde(alias = "Jitter", skip_serializing_if = "Option::is_none")]
    jitter: Option<JitterValue>,
    #[serde(skip_serializing)]
    jitter_enabled: Option<bool>,
    #[serde(skip_serializing)]
    jitter_factor: Option<f64>,
    #[serde(alias = "timeout", skip_serializing_if = "Option::is_none")]
    attempt_timeout: Option<Time>,
    #[serde(alias = "timeout_ms", rename = "timeoutMs", skip_serializing)]
    attempt_timeout_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Time>,
    #[serde(default, alias = "non_retryable_exceptions", skip_serializing_if = "Vec::is_empty")]
    non_retryable: Vec<ErrorRule>,
    #[serde(default, alias = "retryable_exceptions", skip_serializing_if = "Vec::is_empty")]
    retryable: Vec<ErrorRule>,
}

/// Serialises a count without a decimal point.
fn as_whole<S: serde::Serializer>(value: &Option<f64>, s: S) -> Result<S::Ok, S::Error> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a count of attempts
    value.map(|value| value as u64).serialize(s)
}

/// A duration: text such as `"1s"`, or a number of seconds as in `base_delay: 1.0`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "a duration such as \"250ms\" or a number of seconds")]
enum Time {
    Text(String),
    Seconds(f64),
}

/// A jitter: text such as `"10%"`, or a factor as in `Jitter: 0.1`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "a jitter such as \"10%\", \"0..1s\", \"full\", or a factor such as 0.1")]
enum JitterValue {
    Text(String),
    Factor(f64),
}

impl Time {
    fn of(duration: Duration) -> Self {
        Time::Text(format_duration(duration))
    }

    fn read(self, field: &'static str) -> Result<Duration, PolicyError> {
        match self {
            Time::Text(text) => {
                parse_duration(&text).map_err(|source| PolicyError::Duration { field, source })
            }
            Time::Seconds(value) => {
                let millis = (value * 1000.0).round();
                if (millis / 1000.0 - value).abs() > 1e-9 {
                    return Err(PolicyError::NotATime { field, value });
                }
                Duration::try_from_secs_f64(millis / 1000.0)
                    .map(|duration| Duration::from_millis(crate::timestamp::saturating_millis(duration)))
                    .map_err(|_| PolicyError::NotATime { field, value })
            }
        }
    }
}

/// Reads a duration that has two field names.
fn time(
    field: &'static str,
    value: Option<Time>,
    millis_field: &'static str,
    millis: Option<f64>,
) -> Result<Option<Duration>, PolicyError> {
    match (value, millis) {
        (Some(_), Some(_)) => Err(PolicyError::SetTwice { first: field, second: millis_field }),
        (Some(value), None) => value.read(field).map(Some),
        (None, Some(millis)) => count(millis_field, millis).map(|millis| Some(Duration::from_millis(millis))),
        (None, None) => Ok(None),
    }
}

/// Checks for a whole number from 0 up. Parsed as a float, so that the error can name the field.
fn count(field: &'static str, value: f64) -> Result<u64, PolicyError> {
    if value < 0.0 || value.fract() != 0.0 || !value.is_finite() {
        return Err(PolicyError::NotACount { field, value });
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked, and the cast saturates
    Ok(value as u64)
}

impl PolicyDocument {
    fn attempts(&self) -> Result<Option<u32>, PolicyError> {
        let attempts = match (self.max_attempts, self.max_retries) {
            (Some(_), Some(_)) => {
                return Err(PolicyError::SetTwice { first: "max_attempts", second: "maxRetries" });
            }
            (Some(attempts), None) => Some(count("max_attempts", attempts)?),
            (None, Some(retries)) => Some(count("maxRetries", retries)?.saturating_add(1)),
            (None, None) => None,
        };
        attempts
            .map(|attempts| u32::try_from(attempts).map_err(|_| PolicyError::TooManyAttempts { attempts }))
            .transpose()
    }

    fn jitter(&mut self) -> Result<Option<Jitter>, PolicyError> {
        let factor = self.jitter_factor.take().map(Jitter::proportional).transpose()?;
        let given = match self.jitter.take() {
            None => None,
            Some(_) if factor.is_some() => {
                return Err(PolicyError::SetTwice { first: "jitter", second: "jitter_factor" });
            }
            Some(_) if self.jitter_enabled.is_some() => {
                return Err(PolicyError::SetTwice { first: "jitter", second: "jitter_enabled" });
            }
            Some(JitterValue::Text(text)) => Some(text.parse()?),
            Some(JitterValue::Factor(factor)) => Some(Jitter::proportional(factor)?),
        };
        Ok(match self.jitter_enabled {
            Some(false) => Some(Jitter::None),
            Some(true) => factor.or(Some(Jitter::TEN_PERCENT)),
            None => given.or(factor),
        })
    }

    fn partial(&mut self) -> Result<RetryOverride, PolicyError> {
        Ok(RetryOverride {
            preset: self.preset,
            max_attempts: self.attempts()?,
            base_delay: time("base_delay", self.base_delay.take(), "baseDelayMs", self.base_delay_ms)?,
            max_delay: time("max_delay", self.max_delay.take(), "maxDelayMs", self.max_delay_ms)?,
            multiplier: self.multiplier,
            jitter: self.jitter()?,
        })
    }
}

impl TryFrom<PolicyDocument> for RetryPolicy {
    type Error = PolicyError;

    /// Missing fields come from the bus preset.
    fn try_from(mut document: PolicyDocument) -> Result<Self, PolicyError> {
        let mut policy = document.partial()?.fill_from(&RetryPolicy::bus())?;
        policy.attempt_timeout =
            time("attempt_timeout", document.attempt_timeout, "timeoutMs", document.attempt_timeout_ms)?;
        policy.deadline = document.deadline.map(|deadline| deadline.read("deadline")).transpose()?;
        policy.rules = Rules::from_lists(document.non_retryable, document.retryable);
        policy.validate()
    }
}

impl From<RetryPolicy> for PolicyDocument {
    fn from(policy: RetryPolicy) -> Self {
        // Fixed delays are named by their preset.
        let preset = (policy.backoff.growth == Growth::StandardWebhooks).then_some(Preset::Standard);
        let is_exponential = preset.is_none();
        PolicyDocument {
            preset,
            max_attempts: Some(f64::from(policy.max_attempts)),
            base_delay: is_exponential.then(|| Time::of(policy.base_delay())),
            multiplier: is_exponential.then(|| policy.multiplier()),
            max_delay: Some(Time::of(policy.max_delay())),
            jitter: Some(JitterValue::Text(policy.jitter().to_string())),
            attempt_timeout: policy.attempt_timeout.map(Time::of),
            deadline: policy.deadline.map(Time::of),
            non_retryable: policy.rules.non_retryable,
            retryable: policy.rules.retryable,
            ..PolicyDocument::default()
        }
    }
}

impl TryFrom<PolicyDocument> for RetryOverride {
    type Error = PolicyError;

    fn try_from(mut document: PolicyDocument) -> Result<Self, PolicyError> {
        let partial = document.partial()?;
        // An override does not enforce these fields, so it refuses them.
        let rest = [
            ("attempt_timeout", document.attempt_timeout.is_some() || document.attempt_timeout_ms.is_some()),
            ("deadline", document.deadline.is_some()),
            ("non_retryable", !document.non_retryable.is_empty()),
            ("retryable", !document.retryable.is_empty()),
        ];
        if let Some((field, _)) = rest.into_iter().find(|(_, given)| *given) {
            return Err(PolicyError::NotOverridable { field });
        }
        match partial.apply_to(&RetryPolicy::bus()) {
            // A maximum below the *default* base delay is judged when the override is applied.
            Ok(_) | Err(PolicyError::CapBelowBase { .. }) => Ok(partial),
            Err(error) => Err(error),
        }
    }
}

impl From<RetryOverride> for PolicyDocument {
    fn from(partial: RetryOverride) -> Self {
        PolicyDocument {
            preset: partial.preset,
            max_attempts: partial.max_attempts.map(f64::from),
            base_delay: partial.base_delay.map(Time::of),
            multiplier: partial.multiplier,
            max_delay: partial.max_delay.map(Time::of),
            jitter: partial.jitter.map(|jitter| JitterValue::Text(jitter.to_string())),
            ..PolicyDocument::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<RetryPolicy, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn the_field_names_of_every_specification_are_accepted() {
        let bus =
            read(r#"{"maxRetries":3,"baseDelayMs":1000,"maxDelayMs":30000,"backoffMultiplier":2}"#).unwrap();
        assert_eq!(bus, RetryPolicy::bus());
        let webhook = read(
            r#"{"InitialInterval":"1s","Multiplier":2.0,"Jitter":0.1,"MaxInterval":"1h","MaxAttempts":5}"#,
        )
        .unwrap();
        assert_eq!(webhook, RetryPolicy::webhook());
        let call = read(
            r#"{"max_attempts":3,"base_delay":1.0,"max_delay":30.0,"backoff_multiplier":2.0,"jitter_enabled":true,
                "jitter_factor":0.1,"retryable_exceptions":[],"non_retryable_exceptions":[]}"#,
        )
        .unwrap();
        assert_eq!(call, RetryPolicy::call());
        let scheduler =
            read(r#"{"DEFAULT_MAX_RETRIES":3,"BASE_DELAY_MS":2000,"MAX_DELAY_MS":60000,"jitter":"0..1s"}"#)
                .unwrap();
        assert_eq!(scheduler, RetryPolicy::scheduler());
    }

    #[test]
    fn the_example_policy_of_the_specification_is_read() {
        let policy = read(
            r#"{"max_attempts":5,"base_delay":2.0,"max_delay":60.0,"backoff_multiplier":1.5,"jitter_enabled":true,
                "jitter_factor":0.2}"#,
        )
        .unwrap();
        assert_eq!((policy.max_attempts(), policy.multiplier()), (5, 1.5));
        assert_eq!((policy.max_delay().as_secs(), policy.jitter().to_string()), (60, "20%".into()));
        let waits: Vec<_> = (2..=5).map(|n| policy.backoff().nominal(n).as_millis()).collect();
        assert_eq!(waits, [2000, 3000, 4500, 6750]);
        let range = policy.backoff().range(2, None);
        assert_eq!((range.min().as_millis(), range.max().as_millis()), (1600, 2400));
    }

    #[test]
    fn jitter_that_is_disabled_or_zero_leaves_delays_exact() {
        for json in
            [r#"{"jitter_enabled":false,"jitter_factor":0.1}"#, r#"{"Jitter":0}"#, r#"{"jitter":"none"}"#]
        {
            let policy = read(json).unwrap();
            for attempt in 2..=5 {
                let range = policy.backoff().range(attempt, None);
                assert_eq!(range.min(), range.max(), "{json}");
            }
        }
    }

    #[test]
    fn a_policy_survives_a_round_trip_through_json() {
        let policy = RetryPolicy::builder()
            .max_attempts(7)
            .base_delay(Duration::from_millis(250))
            .max_delay(Duration::from_secs(3600))
            .attempt_timeout(Duration::from_secs(90))
            .deadline(Duration::from_secs(86_400))
            .non_retryable("status:404".parse().unwrap())
            .retryable("message:connection reset".parse().unwrap())
            .build()
            .unwrap();
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(
            text,
            r#"{"max_attempts":7,"base_delay":"250ms","multiplier":2.0,"max_delay":"1h","jitter":"10%","attempt_timeout":"1m 30s","deadline":"1day","non_retryable":["status:404"],"retryable":["message:connection reset"]}"#
        );
        assert_eq!(read(&text).unwrap(), policy);
    }

    #[test]
    fn a_policy_with_fixed_delays_survives_a_round_trip_through_json() {
        let text = serde_json::to_string(&RetryPolicy::standard()).unwrap();
        assert_eq!(text, r#"{"preset":"standard","max_attempts":10,"max_delay":"1day","jitter":"10%"}"#);
        assert_eq!(read(&text).unwrap(), RetryPolicy::standard());
    }

    #[test]
    fn an_invalid_document_is_refused_with_field_and_remedy() {
        for (json, hint) in [
            (r#"{"max_attempts":0}"#, "set it to 1"),
            (r#"{"maxRetries":4294967295}"#, "lower max_attempts"),
            (r#"{"max_attempts":99999999999}"#, "lower max_attempts"),
            (r#"{"max_attempts":3,"maxRetries":2}"#, "max_attempts and maxRetries set the same thing"),
            (r#"{"base_delay":"1s","baseDelayMs":1000}"#, "base_delay and baseDelayMs set the same thing"),
            (r#"{"jitter":"10%","jitter_factor":0.2}"#, "jitter and jitter_factor"),
            (r#"{"jitter":"10%","jitter_enabled":false}"#, "jitter and jitter_enabled"),
            (r#"{"base_delay":"soon"}"#, "base_delay: \"soon\" is not a duration"),
            (r#"{"maxRetries":-1}"#, "maxRetries is -1: write a whole number"),
            (r#"{"baseDelayMs":1.5}"#, "baseDelayMs is 1.5"),
            (r#"{"base_delay":0.0004}"#, "base_delay is 0.0004 seconds"),
            (r#"{"base_delay":-1}"#, "base_delay is -1.0 seconds"),
            (r#"{"base_delay":1e300}"#, "base_delay is 1e300 seconds"),
            (r#"{"max_delay":"400days"}"#, "longer than a year"),
            (r#"{"base_delay":[]}"#, "a duration such as"),
            (r#"{"multiplier":0.5}"#, "from 1"),
            (r#"{"jitter":"lots"}"#, "none, 10%, 0..1s, full, equal"),
            (r#"{"jitter_factor":2}"#, "from 0 to 1"),
            (r#"{"non_retryable":["colour:red"]}"#, "colour"),
            (r#"{"max_retires":3}"#, "unknown field"),
        ] {
            let error = read(json).expect_err(json);
            assert!(error.contains(hint), "{json}: {error} lacks {hint}");
        }
    }

    #[test]
    fn an_override_refuses_fields_that_it_does_not_enforce() {
        let error = serde_json::from_str::<RetryOverride>(r#"{"deadline":"1s"}"#).unwrap_err().to_string();
        assert!(error.contains("deadline") && error.contains("whole policy"), "{error}");
        assert!(serde_json::from_str::<RetryOverride>(r#"{"multiplier":0}"#).is_err());
        let fast: RetryOverride = serde_json::from_str(r#"{"maxDelayMs":100}"#).unwrap();
        assert_eq!(serde_json::to_string(&fast).unwrap(), r#"{"max_delay":"100ms"}"#);
    }
}
