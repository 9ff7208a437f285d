//! What holds for everything that is sent, unless an endpoint says otherwise: the retry policy, how much at once, how long events are kept.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use redrive::{Jitter, RetryPolicy};
use redrive_retry::{PolicyError, parse_duration};

/// What holds where nobody says otherwise.
#[derive(Debug, Args)]
#[command(next_help_heading = "Delivery")]
pub(crate) struct DeliveryArgs {
    /// Attempts in all, the first one included, before an event goes to the dead-letter queue
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    max_attempts: u32,
    /// The wait before the second attempt
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    base_delay: Duration,
    /// The longest wait
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    max_delay: Duration,
    /// What each further wait is multiplied by; 1 keeps them all the same
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    multiplier: f64,
    /// How waits are spread: 10% (±), 0..1s (on top), full (0 to the wait), equal (half to all of it), none
    #[arg(long, value_name = "JITTER", default_value = "10%")]
    jitter: Jitter,
    /// Deliveries that may be under way at once, to all endpoints together; the rest waits on disk
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    /// How long handled events are kept, or forever; dead letters are kept until they are purged
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    retention: Retention,
}

/// How long handled events are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retention(pub(crate) Option<Duration>);

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
        RetryPolicy::webhook()
            .to_builder()
            .max_attempts(self.max_attempts)
            .base_delay(self.base_delay)
            .max_delay(self.max_delay)
            .multiplier(self.multiplier)
            .jitter(self.jitter)
            .build()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight as usize
    }

    pub(crate) fn retention(&self) -> Option<Duration> {
        self.retention.0
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
    fn the_defaults_are_the_policy_of_webhooks() {
        let defaults = parse(&[]);
        assert_eq!(defaults.policy().unwrap(), RetryPolicy::webhook());
        assert_eq!(defaults.retention(), Some(Duration::from_secs(7 * 24 * 3600)));
    }

    #[test]
    fn what_is_given_is_in_force() {
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
        assert_eq!(args.retention(), None);
        assert!(parse(&["--base-delay", "2h"]).policy().is_err());
    }
}
