//! `redrive endpoints list` and `show`.

use redrive_api::endpoints::{CircuitState, DisabledReason, Endpoint, EndpointState};
use redrive_api::retry::Retry;
use redrive_webhook::EndpointId;

use crate::api::{PageArgs, Session, relative, when};
use crate::failure::Failure;
use crate::screen::Style;
use crate::table::Table;
use crate::{format, time_format};

pub(super) async fn list(page: PageArgs, api: &mut Session<'_>) -> Result<(), Failure> {
    let page = page.collect(async |page| api.endpoints().list(page).await).await?;
    let hint = "redrive endpoints add https://example.com/hooks --pattern 'order.*'";
    let none = format!("No endpoints. Create one: {hint}{}", api.flag);
    api.page(page, "endpoints list", &none, |api, endpoints| {
        let row = |endpoint: &Endpoint| {
            [
                format::one_line(&endpoint.id),
                format::one_line(&endpoint.description),
                status(endpoint),
                format::one_line(&endpoint.url),
                format::one_line(&endpoint.patterns.join(" ")),
            ]
        };
        let heading = ["id", "description", "status", "url", "patterns"];
        let table = Table::new(heading, endpoints.iter().map(row)).whole(&[0]);
        table.styles(2, endpoints.iter().map(|one| style(&status(one)))).print(api.out, api.screen)
    })
}

pub(super) async fn show(id: &EndpointId, api: &mut Session<'_>) -> Result<(), Failure> {
    let endpoint = api.endpoints().get(id.as_str()).await?;
    api.print_response(endpoint, print)
}

/// The style of a status.
fn style(status: &str) -> Style {
    if status == "enabled" { Style::Good } else { Style::Bad }
}

/// Sums up the status in a word or two.
fn status(endpoint: &Endpoint) -> String {
    match (&endpoint.disabled, &endpoint.state) {
        (Some(disabled), _) => format!("disabled ({})", reason(&disabled.reason)),
        (None, _) if !endpoint.enabled => "disabled".to_owned(),
        (None, EndpointState { failing_since: Some(since), .. }) => {
            format!("failing for {}", time_format::age(since.0))
        }
        (None, EndpointState { throttled_until: Some(until), .. }) => {
            format!("throttled, {}", relative(*until))
        }
        (None, EndpointState { reduced_rate: Some(rate), .. }) => format!("reduced to {rate:.1}/s"),
        (None, EndpointState { circuit: Some(circuit), .. }) if *circuit != CircuitState::Closed => {
            format!("circuit {}", name(circuit))
        }
        _ => "enabled".to_owned(),
    }
}

pub(super) fn print(api: &mut Session<'_>, endpoint: Endpoint) -> Result<(), Failure> {
    let status = status(&endpoint);
    let status = api.screen.paint(style(&status), &status);
    let some = |text: String| Some(format::one_line(&text)).filter(|text| !text.is_empty());
    let rate =
        endpoint.per_second.map_or_else(|| "no rate limit".to_owned(), |rate| format!("{rate} a second"));
    let reduced = endpoint.state.reduced_rate.map(|rate| {
        format!("to {rate:.1} a second, because it answers that it is overloaded; rises with every success")
    });
    let circuit = endpoint.state.circuit.as_ref().map(|circuit| {
        let until = endpoint.state.circuit_until.map(|at| format!(" until {}", when(at)));
        name(circuit) + &until.unwrap_or_default()
    });
    let changed = when(endpoint.updated_at);
    api.details(
        &format::one_line(&endpoint.id),
        [
            ("url", some(endpoint.url)),
            ("patterns", some(endpoint.patterns.join(" "))),
            ("description", some(endpoint.description)),
            ("status", Some(status)),
            ("since", endpoint.disabled.map(|disabled| when(disabled.since))),
            ("headers", some(endpoint.header_names.join(", "))),
            ("timeout", Some(format::duration(endpoint.timeout_ms))),
            ("rate", Some(format!("{rate}, {} at once", endpoint.concurrency))),
            ("reduced", reduced),
            ("retries", Some(endpoint.retry.map_or_else(|| "server default".to_owned(), retry))),
            ("circuit", circuit),
            ("created", Some(when(endpoint.created_at))),
            ("changed", Some(format!("{changed}, version {}", endpoint.version))),
        ],
    )?;
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

fn retry(retry: Retry) -> String {
    let parts = [
        retry.preset.map(|preset| format!("preset {}", format::one_line(preset.as_str()))),
        retry.max_attempts.map(|n| format::counted(n.into(), "attempt")),
        retry.base_delay_ms.map(|wait| format!("first wait {}", format::duration(wait))),
        retry.max_delay_ms.map(|wait| format!("longest {}", format::duration(wait))),
        retry.multiplier.map(|x| format!("×{x}")),
        retry.jitter.map(|jitter| format!("jitter {}", format::one_line(&jitter))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
