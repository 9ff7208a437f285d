//! `redrive events show`: shows one event with payload, deliveries and attempts.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use redrive::EventId;
use redrive_api::events::{Attempt, Event, EventStatus};
use redrive_api::time::Time;

use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, payload, time_format};

/// Show one event: payload, errors, attempts, deliveries
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The event
    #[arg(value_name = "ID")]
    id: EventId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let event = api.events().get(*self.id.as_uuid()).await?;
        if self.json {
            return write_json(out, &event);
        }
        print(&event, out, screen)?;
        if event.status == EventStatus::Dlq {
            writeln!(out, "\nRedrive it: redrive dlq retry {}{}", event.id, api.flag())?;
        }
        Ok(())
    }
}

/// Whether a delivery or an event with this status waits for its due time.
fn waits(status: &EventStatus) -> bool {
    matches!(status, EventStatus::Pending | EventStatus::Processing)
}

fn print(event: &Event, out: &mut impl Write, screen: Screen) -> io::Result<()> {
    let now = time_format::now();
    let style = match event.status {
        EventStatus::Done => Style::Good,
        EventStatus::Dlq => Style::Bad,
        _ => Style::Load,
    };
    let when = |at: Time| format!("{at} ({})", time_format::relative(at.0, now));
    let title = format!("{} {}", format::one_line(&event.event_type), event.id);
    writeln!(out, "{}", screen.paint(Style::Strong, title))?;
    writeln!(out, "  status     {}", screen.paint(style, format::one_line(event.status.as_str())))?;
    writeln!(out, "  failures   {}", event.retry_count)?;
    writeln!(out, "  published  {}", when(event.created_at))?;
    writeln!(out, "  changed    {}", when(event.updated_at))?;
    if let Some(due) = event.due_at.filter(|_| waits(&event.status)) {
        writeln!(out, "  due        {}", when(due))?;
    }
    metadata(&event.metadata, out)?;
    writeln!(out, "\n{}\n{}", screen.paint(Style::Quiet, "payload"), payload::pretty(event.payload.get()))?;
    if !event.deliveries.is_empty() {
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "deliveries"))?;
        for delivery in &event.deliveries {
            let due = delivery.due_at.filter(|_| waits(&delivery.status));
            let due =
                due.map_or_else(String::new, |at| format!(", due {}", time_format::relative(at.0, now)));
            let error = delivery.errors.last().map_or_else(String::new, |error| format!(": {error}"));
            let retries = format::counted(delivery.retry_count.into(), "failure");
            let line = format!("{}  {}, {retries}{due}{error}", delivery.subscription, delivery.status);
            writeln!(
                out,
                "  {}",
                format::cut(&format::one_line(&line).replacen(' ', "  ", 1), screen.width - 2)
            )?;
        }
    }
    attempts(&event.attempts, out, screen)
}

/// Prints the metadata.
pub(crate) fn metadata(metadata: &BTreeMap<String, String>, out: &mut impl Write) -> io::Result<()> {
    for (name, value) in metadata {
        writeln!(out, "  {}={}", format::one_line(name), format::one_line(value))?;
    }
    Ok(())
}

/// Prints the recorded attempts.
pub(crate) fn attempts(attempts: &[Attempt], out: &mut impl Write, screen: Screen) -> io::Result<()> {
    if attempts.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", screen.paint(Style::Quiet, "attempts"))?;
    for attempt in attempts {
        let took = format::duration(attempt.duration_ms);
        let ended = match (attempt.class.as_deref().map(format::one_line), attempt.delay_ms) {
            (None, _) => "succeeded".to_owned(),
            (Some(class), 0) => format!("{class}, dead-lettered"),
            (Some(class), delay) => format!("{class}, again after {}", format::duration(delay)),
        };
        let subscription = format::one_line(&attempt.subscription);
        writeln!(out, "  {}. {}  {subscription}, took {took}, {ended}", attempt.attempt, attempt.started_at)?;
        for line in (Screen { width: screen.width.saturating_sub(5), ..screen })
            .wrap(&format::one_line(&attempt.error))
            .lines()
        {
            writeln!(out, "     {line}")?;
        }
    }
    Ok(())
}
