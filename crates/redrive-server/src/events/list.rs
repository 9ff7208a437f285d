//! `redrive events list`: events, newest first.

use std::io::Write;

use clap::Args;
use redrive::{EventDetail, EventFilter, EventStatus, EventType, Unread};
use serde::Serialize;

use crate::failure::Failure;
use crate::ledger::{Ledger, Part};
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{label, moment};

/// List events, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive events list --status processing
  redrive events list --type order.created --limit 5 --json | jq -r .events[].id")]
pub(crate) struct List {
    /// Only those that are pending, processing, done or dlq
    #[arg(long, value_name = "STATUS")]
    status: Option<EventStatus>,
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = |text: &str| EventType::new(text))]
    event_type: Option<EventType>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Continue where the last page ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<i64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Page<P> {
    events: Vec<EventDetail<P>>,
    /// For `--after`, if there is more.
    next: Option<i64>,
}

impl List {
    pub(crate) async fn run(
        self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let filter = EventFilter { status: self.status, event_type: self.event_type };
        if self.json {
            let Part { items: events, next } = ledger.events(filter, self.limit, self.after).await?;
            serde_json::to_writer(&mut *out, &Page { events, next })?;
            return Ok(writeln!(out)?);
        }
        let Part { items: events, next } = ledger.events_in_short(filter, self.limit, self.after).await?;
        Page { events, next }.print(ledger, out, screen)
    }
}

impl Page<Unread> {
    fn print(&self, ledger: &Ledger, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if self.events.is_empty() {
            return Ok(writeln!(out, "No events.")?);
        }
        let now = moment::now();
        let mut table =
            Table::new(["event", "type", "status", "age", "failed"].map(|name| (name, Align::Left)));
        // An id is long, and must be whole to be of use.
        let room = screen.width.saturating_sub(64).clamp(8, 32);
        for event in &self.events {
            let failed = event.errors.last().map_or_else(String::new, |error| {
                format!("{}× {}", event.retry_count, label::one_line(error))
            });
            table.row([
                event.id.to_string(),
                label::cut(event.event_type.as_str(), room),
                event.status.to_string(),
                moment::age(event.created_at, now),
                failed,
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = self.next {
            let more = format!("More: redrive events list --after {next}{}", ledger.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}
