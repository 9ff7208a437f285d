//! The flags that say how an endpoint is treated, and what they are in the API.

use std::time::Duration;

use clap::Args;
use redrive_retry::{Jitter, parse_duration};
use serde_json::{Map, Value, json};

/// How an endpoint is treated.
#[derive(Debug, Args)]
pub(super) struct SettingsArgs {
    /// What people call it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// A header that is sent along, such as 'Authorization: Basic …'; several are given one by one. They are kept sealed
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// How long an attempt may take, from 1s to 30s [default: 20s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// How many attempts may begin in a second [default: as many as there are]
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// How many attempts may be under way at once, from 1 to 256 [default: 16]
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    #[command(flatten)]
    retry: RetryArgs,
}

/// What is not as in the policy of the server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retries (what is not given is as the server has it)")]
struct RetryArgs {
    /// Attempts in all, the first one included
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// The wait before the second attempt
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    base_delay: Option<Duration>,
    /// The longest wait
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    max_delay: Option<Duration>,
    /// What each further wait is multiplied by
    #[arg(long, value_name = "X")]
    multiplier: Option<f64>,
    /// How waits are spread: 10%, 0..1s, full, equal, none
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

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl SettingsArgs {
    /// What of it is given, as the API names it.
    pub(super) fn put_into(self, body: &mut Map<String, Value>) {
        let headers: Option<Map<String, Value>> = (!self.header.is_empty())
            .then(|| self.header.into_iter().map(|(name, value)| (name, Value::String(value))).collect());
        let retry = self.retry.given();
        let given = [
            ("description", self.description.map(Value::from)),
            ("headers", headers.map(Value::from)),
            ("timeout_ms", self.timeout.map(millis).map(Value::from)),
            ("per_second", self.per_second.map(Value::from)),
            ("concurrency", self.concurrency.map(Value::from)),
            ("retry", (!retry.is_empty()).then(|| retry.into())),
        ];
        body.extend(present(given));
    }
}

impl RetryArgs {
    fn given(self) -> Map<String, Value> {
        let given = [
            ("max_attempts", self.max_attempts.map(Value::from)),
            ("base_delay_ms", self.base_delay.map(|time| json!(millis(time)))),
            ("max_delay_ms", self.max_delay.map(|time| json!(millis(time)))),
            ("multiplier", self.multiplier.map(Value::from)),
            ("jitter", self.jitter.map(|jitter| Value::from(jitter.to_string()))),
        ];
        present(given).collect()
    }
}

fn present<const N: usize>(given: [(&str, Option<Value>); N]) -> impl Iterator<Item = (String, Value)> {
    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
}
