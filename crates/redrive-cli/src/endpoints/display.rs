//! Prints an endpoint for people.

use std::io::Write;

use redrive::retry::Timestamp;
use redrive_api::endpoints::{CircuitState, DisabledReason, Endpoint, EndpointState};
use redrive_api::retry::Retry;
use redrive_api::time::Time;

use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, time_format};

/// Sums up the status in a word or two.
pub(super) fn status(endpoint: &Endpoint, now: Timestamp) -> String {
    match (&endpoint.disabled, &endpoint.state) {
        (Some(disabled), _) => format!("disabled ({})", reason(&disabled.reason)),
        (None, _) if !endpoint.enabled => "disabled".to_owned(),
        (None, EndpointState { failing_since: Some(since), .. }) => {
            format!("failing for {}", time_format::age(since.0, now))
        }
        (None, EndpointState { throttled_until: Some(until), .. }) => {
            format!("throttled, {}", time_format::relative(until.0, now))
        }
        (None, EndpointState { circuit: Some(circuit), .. }) if *circuit != CircuitState::Closed => {
            format!("circuit {}", name(circuit))
        }
        _ => "enabled".to_owned(),
    }
}

pub(super) fn print(endpoint: &Endpoint, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    let now = time_format::now();
    let when = |at: Time| format!("{at} ({})", time_format::relative(at.0, now));
    let mut line = |name: &str, value: &str| writeln!(out, "  {name:12} {value}");
    line("url", &format::one_line(&endpoint.url))?;
    line("patterns", &format::one_line(&endpoint.patterns.join(" ")))?;
    if !endpoint.description.is_empty() {
        line("description", &format::one_line(&endpoint.description))?;
    }
    let status = status(endpoint, now);
    let style = if status == "enabled" { Style::Good } else { Style::Bad };
    line("status", &screen.paint(style, status))?;
    if let Some(disabled) = &endpoint.disabled {
        line("since", &when(disabled.since))?;
    }
    if !endpoint.header_names.is_empty() {
        line("headers", &format::one_line(&endpoint.header_names.join(", ")))?;
    }
    line("timeout", &format::duration(endpoint.timeout_ms))?;
    let rate =
        endpoint.per_second.map_or_else(|| "no rate limit".to_owned(), |rate| format!("{rate} a second"));
    line("rate", &format!("{rate}, {} at once", endpoint.concurrency))?;
    line("retries", &endpoint.retry.as_ref().map_or_else(|| "as the server has it".to_owned(), retry))?;
    if let Some(circuit) = &endpoint.state.circuit {
        let until =
            endpoint.state.circuit_until.map_or_else(String::new, |at| format!(" until {}", when(at)));
        line("circuit", &format!("{}{until}", name(circuit)))?;
    }
    line("created", &when(endpoint.created_at))?;
    line("changed", &format!("{}, version {}", when(endpoint.updated_at), endpoint.version))?;
    Ok(())
}

fn name(circuit: &CircuitState) -> String {
    format::one_line(&circuit.as_str().replace('_', " "))
}

fn reason(reason: &DisabledReason) -> String {
    match reason {
        DisabledReason::ByHand => "by hand".to_owned(),
        DisabledReason::Gone => "it answered 410 Gone".to_owned(),
        DisabledReason::Failing => "no success for five days".to_owned(),
        DisabledReason::Other(name) => format::one_line(name),
    }
}

fn retry(retry: &Retry) -> String {
    let parts = [
        retry.max_attempts.map(|n| format::counted(n.into(), "attempt")),
        retry.base_delay_ms.map(|wait| format!("first wait {}", format::duration(wait))),
        retry.max_delay_ms.map(|wait| format!("longest {}", format::duration(wait))),
        retry.multiplier.map(|x| format!("×{x}")),
        retry.jitter.as_ref().map(|jitter| format!("jitter {}", format::one_line(jitter))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
