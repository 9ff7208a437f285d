//! The flags for the settings of an endpoint.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use redrive_api::retry::Retry;
use redrive_retry::Jitter;
use redrive_retry::duration::parse_duration;
use redrive_retry::policy::Preset;

use crate::time_format::millis;

/// Settings of an endpoint.
#[derive(Debug, Args)]
pub(super) struct SettingsArgs {
    /// Description for people
    #[arg(long, value_name = "TEXT")]
    pub(super) description: Option<String>,
    /// Header of every request, such as 'Authorization: Basic …'; may be given several times. Values are stored encrypted
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Timeout of an attempt, from 1s to 30s [default: 20s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Rate limit in attempts per second [default: none]
    #[arg(long, value_name = "N")]
    pub(super) per_second: Option<f64>,
    /// Concurrency limit, from 1 to 256 [default: 16]
    #[arg(long, value_name = "N")]
    pub(super) concurrency: Option<u32>,
    #[command(flatten)]
    retry: RetryArgs,
}

/// Overrides of the retry policy of the server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retries (overrides of the policy of the server)")]
struct RetryArgs {
    /// Preset: standard (the schedule of Standard Webhooks, 10 attempts in three days) or patient (23 attempts in almost five days)
    #[arg(long, value_name = "NAME")]
    retry_preset: Option<Preset>,
    /// Attempts in total, including the first
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Wait before the second attempt
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    base_delay: Option<Duration>,
    /// Longest wait
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    max_delay: Option<Duration>,
    /// Factor between one wait and the next
    #[arg(long, value_name = "X")]
    multiplier: Option<f64>,
    /// Random spread of waits: 10%, 0..1s, full, equal, none
    #[arg(long, value_name = "JITTER")]
    jitter: Option<Jitter>,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("use 'NAME: VALUE', such as 'X-Shop: 7'".to_owned()),
    }
}

impl SettingsArgs {
    pub(super) fn headers(&self) -> Option<BTreeMap<String, String>> {
        (!self.header.is_empty()).then(|| self.header.iter().cloned().collect())
    }

    pub(super) fn timeout_ms(&self) -> Option<u64> {
        self.timeout.map(millis)
    }

    pub(super) fn retry(&self) -> Option<Retry> {
        let retry = Retry {
            preset: self.retry.retry_preset.map(|preset| preset.name().to_owned().into()),
            max_attempts: self.retry.max_attempts,
            base_delay_ms: self.retry.base_delay.map(millis),
            max_delay_ms: self.retry.max_delay.map(millis),
            multiplier: self.retry.multiplier,
            jitter: self.retry.jitter.map(|jitter| jitter.to_string()),
        };
        (retry != Retry::default()).then_some(retry)
    }
}
