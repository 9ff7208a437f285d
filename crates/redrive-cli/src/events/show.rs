//! `redrive events show`: shows one event with payload, deliveries and attempts.

use std::collections::BTreeMap;
use std::io;

use redrive::EventId;
use redrive_api::endpoints::AttemptRecord;
use redrive_api::events::{Attempt, Event, EventStatus};

use crate::api::{Session, relative, when};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, payload};

/// Characters of a response body that are shown; `--json` has all that was recorded.
const MAX_BODY_CHARS: usize = 400;

pub(super) async fn show(id: EventId, api: &mut Session<'_>) -> Result<(), Failure> {
    let event = api.events().get(*id.as_uuid()).await?;
    api.print_response(event, |api, event| {
        print(&event, api)?;
        if event.status == EventStatus::Dlq {
            writeln!(api.out, "\nRedrive it: redrive dlq retry {}{}", event.id, api.flag)?;
        }
        Ok(())
    })
}

/// The style of a status.
pub(super) fn style(status: &EventStatus) -> Style {
    match status {
        EventStatus::Done => Style::Good,
        EventStatus::Dlq => Style::Bad,
        _ => Style::Load,
    }
}

/// Whether a delivery or an event with this status waits for its due time.
fn waits(status: &EventStatus) -> bool {
    matches!(status, EventStatus::Pending | EventStatus::Processing)
}

fn print(event: &Event, api: &mut Session<'_>) -> io::Result<()> {
    let style = style(&event.status);
    let status = api.screen.paint(style, format::one_line(event.status.as_str()));
    let title = format!("{} {}", format::one_line(&event.event_type), event.id);
    api.details(
        &title,
        [
            ("status", Some(status)),
            ("failures", Some(event.retry_count.to_string())),
            ("published", Some(when(event.created_at))),
            ("changed", Some(when(event.updated_at))),
            ("due", event.due_at.filter(|_| waits(&event.status)).map(when)),
        ],
    )?;
    content(&event.metadata, event.payload.get(), api)?;
    if !event.deliveries.is_empty() {
        api.section("deliveries")?;
    }
    for delivery in &event.deliveries {
        let due = delivery.due_at.filter(|_| waits(&delivery.status));
        let due = due.map_or_else(String::new, |at| format!(", due {}", relative(at)));
        let error = delivery.errors.last().map_or_else(String::new, |error| format!(": {error}"));
        let retries = format::counted(delivery.retry_count.into(), "failure");
        let line = format!("{}  {}, {retries}{due}{error}", delivery.subscription, delivery.status);
        let line = format::one_line(&line).replacen(' ', "  ", 1);
        writeln!(api.out, "  {}", api.screen.cut(&line, api.screen.width - 2))?;
    }
    attempts(&event.attempts, api)
}

/// Prints metadata and payload.
pub(crate) fn content(
    metadata: &BTreeMap<String, String>,
    json: &str,
    api: &mut Session<'_>,
) -> io::Result<()> {
    for (name, value) in metadata {
        writeln!(api.out, "  {}={}", format::one_line(name), format::one_line(value))?;
    }
    api.section("payload")?;
    writeln!(api.out, "{}", payload::pretty(json))
}

/// Prints the recorded attempts.
pub(crate) fn attempts(attempts: &[Attempt], api: &mut Session<'_>) -> io::Result<()> {
    if !attempts.is_empty() {
        api.section("attempts")?;
    }
    for attempt in attempts {
        let took = format::duration(attempt.duration_ms);
        let ended = match (attempt.class.as_deref().map(format::one_line), attempt.delay_ms) {
            (None, _) => "succeeded".to_owned(),
            (Some(class), 0) => format!("{class}, dead-lettered"),
            (Some(class), delay) => format!("{class}, again after {}", format::duration(delay)),
        };
        let (number, at) = (attempt.attempt, attempt.started_at);
        let subscription = format::one_line(&attempt.subscription);
        writeln!(api.out, "  {number}. {at}  {subscription}, took {took}, {ended}")?;
        let narrower = Screen { width: api.screen.width.saturating_sub(5), ..api.screen };
        let error = format::one_line(attempt.error.as_deref().unwrap_or_default());
        let response = attempt.request.as_ref().and_then(response).unwrap_or_default();
        for line in narrower.wrap(&error).lines().chain(narrower.wrap(&response).lines()) {
            writeln!(api.out, "     {line}")?;
        }
    }
    Ok(())
}

/// Describes the recorded response: status, and the beginning of its body on one line. `None` if the endpoint did not respond.
fn response(request: &AttemptRecord) -> Option<String> {
    let status = request.status?;
    let (body, kind) = match (&request.body, &request.body_base64) {
        (Some(text), _) if !text.is_empty() => (format::one_line(text), ""),
        (_, Some(bytes)) => (format::one_line(bytes), "(base64) "),
        _ => return Some(format!("response {status}, no body")),
    };
    let was_cut = request.is_cut && body.chars().count() <= MAX_BODY_CHARS;
    let rest = if was_cut { " …" } else { "" };
    Some(format!("response {status}: {kind}{}{rest}", format::cut(&body, MAX_BODY_CHARS)))
}
