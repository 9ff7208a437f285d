//! `redrive events show`: everything about one event.

use std::io::{self, Write};

use clap::Args;
use redrive::{EventDetail, EventId, EventStatus, Timestamp};
use redrive_store::{AttemptRow, Metadata};

use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::screen::{Screen, Style};
use crate::{label, moment, payload};

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
    pub(crate) async fn run(
        &self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let event = ledger.event(self.id).await?;
        if self.json {
            serde_json::to_writer(&mut *out, &event)?;
            return Ok(writeln!(out)?);
        }
        print(&event, out, screen)?;
        if event.status == EventStatus::Dlq {
            writeln!(out, "\nSend it back: redrive dlq retry {}{}", event.id, ledger.flag())?;
        }
        Ok(())
    }
}

fn print(event: &EventDetail, out: &mut impl Write, screen: Screen) -> io::Result<()> {
    let now = moment::now();
    let style = match event.status {
        EventStatus::Done => Style::Good,
        EventStatus::Dlq => Style::Bad,
        EventStatus::Pending | EventStatus::Processing => Style::Load,
    };
    let when = |at: Timestamp| format!("{at} ({})", moment::relative(at, now));
    writeln!(out, "{}", screen.paint(Style::Strong, format!("{} {}", event.event_type, event.id)))?;
    writeln!(out, "  status     {}", screen.paint(style, event.status))?;
    writeln!(out, "  failures   {}", event.retry_count)?;
    writeln!(out, "  published  {}", when(event.created_at))?;
    writeln!(out, "  changed    {}", when(event.updated_at))?;
    if let Some(due) = event.due_at.filter(|_| !matches!(event.status, EventStatus::Done | EventStatus::Dlq))
    {
        writeln!(out, "  due        {}", when(due))?;
    }
    facts(&event.metadata, out)?;
    writeln!(out, "\n{}\n{}", screen.paint(Style::Quiet, "payload"), payload::pretty(event.payload.get()))?;
    if !event.deliveries.is_empty() {
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "deliveries"))?;
        for delivery in &event.deliveries {
            let due = delivery
                .due_at
                .filter(|_| matches!(delivery.status, EventStatus::Pending | EventStatus::Processing));
            let due = due.map_or_else(String::new, |at| format!(", due {}", moment::relative(at, now)));
            let error = delivery
                .errors
                .last()
                .map_or_else(String::new, |error| format!(": {}", label::one_line(error)));
            let retries = label::counted(delivery.retry_count.into(), "failure");
            let line = format!("  {}  {}, {retries}{due}{error}", delivery.subscription, delivery.status);
            writeln!(out, "{}", label::cut(&line, screen.width))?;
        }
    }
    attempts(&event.attempts, out, screen)
}

/// The metadata, if there is any.
pub(crate) fn facts(metadata: &Metadata, out: &mut impl Write) -> io::Result<()> {
    for (name, value) in metadata {
        writeln!(out, "  {}={}", label::one_line(name), label::one_line(value))?;
    }
    Ok(())
}

/// The failed attempts, one after the other.
pub(crate) fn attempts(attempts: &[AttemptRow], out: &mut impl Write, screen: Screen) -> io::Result<()> {
    if attempts.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", screen.paint(Style::Quiet, "attempts"))?;
    for attempt in attempts {
        let took = label::duration(attempt.duration_ms);
        let ended = match (attempt.class, attempt.delay_ms) {
            (None, _) => "succeeded".to_owned(),
            (Some(class), 0) => format!("{class}, given up"),
            (Some(class), delay) => format!("{class}, again after {}", label::duration(delay)),
        };
        writeln!(
            out,
            "  {}. {}  {}, took {took}, {ended}",
            attempt.attempt, attempt.started_at, attempt.subscription
        )?;
        for line in (Screen { width: screen.width.saturating_sub(5), ..screen })
            .wrap(&label::one_line(&attempt.error))
            .lines()
        {
            writeln!(out, "     {line}")?;
        }
    }
    Ok(())
}
