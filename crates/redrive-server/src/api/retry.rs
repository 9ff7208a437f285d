//! Converts retry overrides of the API into those of the bus, and back.

use std::time::Duration;

use redrive::retry::RetryOverride;
use redrive_api::retry::Retry;

use super::problem::Problem;

/// Longest wait: a day.
const MAX_WAIT_MS: u64 = 86_400_000;

/// Converts an override of the bus.
pub(crate) fn view(retry: RetryOverride) -> Retry {
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    Retry {
        preset: retry.preset.map(|preset| preset.name().to_owned().into()),
        max_attempts: retry.max_attempts,
        base_delay_ms: retry.base_delay.map(millis),
        max_delay_ms: retry.max_delay.map(millis),
        multiplier: retry.multiplier,
        jitter: retry.jitter.map(|jitter| jitter.to_string()),
    }
}

fn check(retry: &Retry) -> Result<(), Problem> {
    let is_wait = |millis: Option<u64>| millis.is_none_or(|millis| (1..=MAX_WAIT_MS).contains(&millis));
    if retry.max_attempts.is_some_and(|attempts| !(1..=100).contains(&attempts)) {
        return Err(Problem::invalid("retry.max_attempts is from 1 to 100"));
    }
    if !is_wait(retry.base_delay_ms) || !is_wait(retry.max_delay_ms) {
        return Err(Problem::invalid(format!(
            "retry: waits are from 1 to {MAX_WAIT_MS} milliseconds, which is a day"
        )));
    }
    if retry.multiplier.is_some_and(|multiplier| !(1.0..=100.0).contains(&multiplier)) {
        return Err(Problem::invalid("retry.multiplier is from 1 to 100"));
    }
    Ok(())
}

/// Checks an override of a request, and converts it.
pub(crate) fn into_override(given: Retry) -> Result<RetryOverride, Problem> {
    check(&given)?;
    let preset = given.preset.map(|preset| preset.as_str().parse()).transpose();
    let jitter = given.jitter.map(|jitter| jitter.parse()).transpose();
    Ok(RetryOverride {
        preset: preset.map_err(|error| Problem::invalid(format!("retry.preset: {error}")))?,
        max_attempts: given.max_attempts,
        base_delay: given.base_delay_ms.map(Duration::from_millis),
        max_delay: given.max_delay_ms.map(Duration::from_millis),
        multiplier: given.multiplier,
        jitter: jitter.map_err(|error| Problem::invalid(format!("retry.jitter: {error}")))?,
    })
}
