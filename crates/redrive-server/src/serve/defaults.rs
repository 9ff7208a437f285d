//! Delivery defaults for endpoints without settings of their own: retry policy, deliveries in flight and retention.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use redrive::retry::{Jitter, RetryPolicy};
use redrive_retry::duration::parse_duration;
use redrive_retry::policy::{PolicyError, Preset};

/// Flags for the delivery defaults.
#[derive(Debug, Args)]
#[command(next_help_heading = "Delivery")]
pub(crate) struct DeliveryArgs {
    /// Retry preset instead of the flags below: standard (the schedule of Standard Webhooks, 10 attempts in three days) or patient (23
    /// attempts in almost five days)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["max_attempts", "base_delay", "max_delay", "multiplier", "jitter"])]
    retry_preset: Option<Preset>,
    /// Total attempts, including the first, before an event goes to the dead-letter queue
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    max_attempts: u32,
    /// Delay before the second attempt
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    base_delay: Duration,
    /// Maximum delay between attempts
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    max_delay: Duration,
    /// Factor for each further delay; 1 keeps the delay constant
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    multiplier: f64,
    /// Jitter: 10% (±), 0..1s (added), full (0 to the delay), equal (half to the whole delay), none
    #[arg(long, value_name = "JITTER", default_value = "10%")]
    jitter: Jitter,
    /// Maximum deliveries in flight, for all endpoints together; the rest waits on disk
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) in_flight: u32,
    /// Keep handled events for this time, or forever; dead letters stay until they are purged
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    pub(super) retention: Retention,
}

/// Time for which handled events are kept; `None` for ever.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retention(pub Option<Duration>);

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "forever" => Ok(Retention(None)),
            text => parse_duration(text)
                .map(|time| Retention(Some(time)))
                .map_err(|_| "use a duration, such as 7d, or forever".to_owned()),
        }
    }
}

impl DeliveryArgs {
    pub(crate) fn policy(&self) -> Result<RetryPolicy, PolicyError> {
        if let Some(preset) = self.retry_preset {
            return Ok(preset.policy());
        }
        RetryPolicy::webhook()
            .to_builder()
            .max_attempts(self.max_attempts)
            .base_delay(self.base_delay)
            .max_delay(self.max_delay)
            .multiplier(self.multiplier)
            .jitter(self.jitter)
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn parse(flags: &[&str]) -> DeliveryArgs {
        let words = [&["test"], flags].concat();
        let matches = DeliveryArgs::augment_args(Command::new("test")).get_matches_from(words);
        DeliveryArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_defaults_are_the_webhook_policy() {
        let defaults = parse(&[]);
        assert_eq!(defaults.policy().unwrap(), RetryPolicy::webhook());
        assert_eq!(defaults.retention.0, Some(Duration::from_secs(7 * 24 * 3600)));
    }

    #[test]
    fn a_preset_replaces_the_default_policy() {
        assert_eq!(parse(&["--retry-preset", "standard"]).policy().unwrap(), RetryPolicy::standard());
        assert_eq!(parse(&["--retry-preset", "patient"]).policy().unwrap(), RetryPolicy::patient());
        let command = DeliveryArgs::augment_args(Command::new("test"));
        for words in [&["--retry-preset", "bus"][..], &["--retry-preset", "standard", "--max-attempts", "3"]]
        {
            let refused = command.clone().try_get_matches_from([&["test"], words].concat()).unwrap_err();
            assert_eq!(refused.exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn flags_override_the_defaults() {
        let args = parse(&[
            "--max-attempts",
            "2",
            "--base-delay",
            "10ms",
            "--jitter",
            "none",
            "--retention",
            "forever",
        ]);
        let policy = args.policy().unwrap();
        assert_eq!((policy.max_attempts(), policy.base_delay()), (2, Duration::from_millis(10)));
        assert_eq!(args.retention.0, None);
        assert!(parse(&["--base-delay", "2h"]).policy().is_err());
    }
}
