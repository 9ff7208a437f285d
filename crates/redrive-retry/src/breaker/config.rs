//! Settings of a circuit breaker.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::power;
use crate::duration;
use crate::policy::RetryPolicy;
use crate::ratio::Ratio;
use crate::setters;
use crate::timestamp::saturating_millis;

/// Settings of a circuit breaker: failure threshold, window, open time and probe lease.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct BreakerConfig {
    failure_ratio: Ratio,
    min_samples: u32,
    window: Duration,
    open_for: Duration,
    open_growth: Ratio,
    max_open_for: Duration,
    probe_lease: Duration,
}

impl Default for BreakerConfig {
    /// Opens for 30 s after more than 50 % failures of at least 4 samples in one minute.
    fn default() -> Self {
        BreakerConfig {
            failure_ratio: Ratio::from_millionths(500_000),
            min_samples: 4,
            window: Duration::from_secs(60),
            open_for: Duration::from_secs(30),
            open_growth: Ratio::ONE,
            max_open_for: Duration::from_secs(600),
            probe_lease: Duration::from_secs(30),
        }
    }
}

impl BreakerConfig {
    /// Creates a builder with the default settings.
    pub fn builder() -> BreakerConfigBuilder {
        BreakerConfigBuilder(Document::from(BreakerConfig::default()))
    }

    /// Share of failed calls above which the circuit opens.
    pub fn failure_ratio(&self) -> Ratio {
        self.failure_ratio
    }

    /// Minimum number of calls in the window on which the circuit opens.
    pub fn min_samples(&self) -> u32 {
        self.min_samples
    }

    /// Length of the window in which calls count.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Longest open time.
    pub fn max_open_for(&self) -> Duration {
        self.max_open_for
    }

    /// Time after which a probe without an outcome loses its slot.
    pub fn probe_lease(&self) -> Duration {
        self.probe_lease
    }

    /// Open time after this number of earlier openings in a row.
    pub fn open_duration(&self, openings: u32) -> Duration {
        let growth = power(self.open_growth.as_f64(), openings);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let grown = (saturating_millis(self.open_for) as f64 * growth) as u64; // float casts saturate
        Duration::from_millis(grown).min(self.max_open_for)
    }
}

/// Builds a [`BreakerConfig`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build()"]
pub struct BreakerConfigBuilder(Document);

impl BreakerConfigBuilder {
    setters! {
        /// Opens the circuit when strictly more than this share of the calls failed. From 0 to below 1.
        failure_ratio(ratio: f64) => 0.failure_ratio = ratio;
        /// Requires at least this number of calls in the window before the circuit opens.
        min_samples(samples: u32) => 0.min_samples = samples;
        /// Sets the length of the window in which calls count.
        window(window: Duration) => 0.window = window;
        /// Sets how long the circuit stays open before a probe.
        open_for(open_for: Duration) => 0.open_for = open_for;
        /// Multiplies the open time by this factor each time a probe fails. 1 keeps it constant.
        open_growth(growth: f64) => 0.open_growth = growth;
        /// Limits the growth of the open time.
        max_open_for(max: Duration) => 0.max_open_for = max;
        /// Sets the time after which a probe without an outcome loses its slot.
        probe_lease(lease: Duration) => 0.probe_lease = lease;
    }

    /// Checks the settings and builds the configuration.
    pub fn build(self) -> Result<BreakerConfig, BreakerError> {
        self.0.try_into()
    }
}

/// Unchecked settings as read from a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    failure_ratio: f64,
    min_samples: u32,
    #[serde(with = "duration::text")]
    window: Duration,
    #[serde(with = "duration::text")]
    open_for: Duration,
    open_growth: f64,
    #[serde(with = "duration::text")]
    max_open_for: Duration,
    #[serde(with = "duration::text")]
    probe_lease: Duration,
}

impl Default for Document {
    fn default() -> Self {
        BreakerConfig::default().into()
    }
}

impl From<BreakerConfig> for Document {
    fn from(config: BreakerConfig) -> Self {
        Document {
            failure_ratio: config.failure_ratio.as_f64(),
            min_samples: config.min_samples,
            window: config.window,
            open_for: config.open_for,
            open_growth: config.open_growth.as_f64(),
            max_open_for: config.max_open_for,
            probe_lease: config.probe_lease,
        }
    }
}

impl TryFrom<Document> for BreakerConfig {
    type Error = BreakerError;

    fn try_from(document: Document) -> Result<Self, BreakerError> {
        let invalid = |field, value: String, remedy| BreakerError { field, value, remedy };
        let refuse = |field, value, remedy| Err(invalid(field, value, remedy));
        let failure_ratio = Ratio::from_f64(document.failure_ratio).filter(|ratio| *ratio < Ratio::ONE);
        let failure_ratio = failure_ratio.ok_or_else(|| {
            let value = document.failure_ratio.to_string();
            invalid("failure_ratio", value, "set it from 0 to below 1, such as 0.5")
        })?;
        let open_growth = Ratio::from_f64(document.open_growth).filter(|growth| *growth >= Ratio::ONE);
        let open_growth = open_growth.ok_or_else(|| {
            invalid("open_growth", document.open_growth.to_string(), "set it to 1 (constant) or more")
        })?;
        if document.min_samples == 0 {
            return refuse("min_samples", "0".into(), "set it to 1 or more, such as 4");
        }
        for (field, value) in [
            ("window", document.window),
            ("open_for", document.open_for),
            ("max_open_for", document.max_open_for),
            ("probe_lease", document.probe_lease),
        ] {
            if value.is_zero() || value > RetryPolicy::MAX_DURATION {
                return refuse(field, duration::format_duration(value), "set it from 1ms to a year");
            }
        }
        if document.max_open_for < document.open_for {
            let value = duration::format_duration(document.max_open_for);
            return refuse("max_open_for", value, "raise it to at least open_for");
        }
        Ok(BreakerConfig {
            failure_ratio,
            min_samples: document.min_samples,
            window: document.window,
            open_for: document.open_for,
            open_growth,
            max_open_for: document.max_open_for,
            probe_lease: document.probe_lease,
        })
    }
}

/// An invalid setting of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("circuit breaker: {field} = {value} does not work: {remedy}")]
pub struct BreakerError {
    field: &'static str,
    value: String,
    remedy: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_specified_settings() {
        let config = BreakerConfig::default();
        assert_eq!(config.failure_ratio.as_f64(), 0.5);
        assert_eq!(config.min_samples, 4);
        assert_eq!(config.window, Duration::from_secs(60));
        assert_eq!(config.open_for, Duration::from_secs(30));
        assert_eq!(config.open_growth, Ratio::ONE);
    }

    #[test]
    fn an_invalid_setting_is_named_with_a_remedy() {
        let b = BreakerConfig::builder;
        for (builder, hint) in [
            (b().failure_ratio(1.0), "failure_ratio = 1 does not work: set it from 0 to below 1"),
            (b().failure_ratio(f64::NAN), "failure_ratio = NaN"),
            (b().open_growth(0.5), "open_growth = 0.5"),
            (b().min_samples(0), "min_samples = 0"),
            (b().window(Duration::ZERO), "window = 0s"),
            (b().open_for(Duration::MAX), "open_for"),
            (b().open_for(Duration::from_secs(601)), "raise it to at least open_for"),
            (b().probe_lease(Duration::ZERO), "probe_lease"),
        ] {
            let error = builder.build().unwrap_err().to_string();
            assert!(error.contains(hint), "{error} lacks {hint}");
        }
    }

    #[test]
    fn a_partial_document_keeps_the_other_defaults() {
        let config: BreakerConfig = serde_json::from_str(r#"{"open_for":"5s","min_samples":10}"#).unwrap();
        let expected =
            BreakerConfig::builder().open_for(Duration::from_secs(5)).min_samples(10).build().unwrap();
        assert_eq!(config, expected);
        assert!(serde_json::from_str::<BreakerConfig>(r#"{"opne_for":"5s"}"#).is_err());
    }
}
