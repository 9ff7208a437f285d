//! `redrive events list`: lists events, newest first.

use std::io::Write;

use clap::Args;
use redrive::EventType;
use redrive::events::EventStatus;
use redrive_api::events::{EventFilter, EventSummary};
use redrive_api::page::Page;

use crate::api::{Api, collect, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{format, time_format};

/// List events, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive events list --status processing
  redrive events list --type order.created --limit 5 --json | jq -r .data[].id")]
pub(crate) struct List {
    /// Only events with this status: pending, processing, done or dlq
    #[arg(long, value_name = "STATUS")]
    status: Option<EventStatus>,
    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = |text: &str| EventType::new(text))]
    event_type: Option<EventType>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let filter = EventFilter {
            status: self.status.map(|status| status.to_string().into()),
            event_type: self.event_type.map(|name| name.to_string()),
        };
        let page =
            collect(self.limit, self.after, async |page| api.events().list(&filter, page).await).await?;
        if self.json { write_json(out, &page) } else { print(&page, api, out, screen) }
    }
}

fn print(page: &Page<EventSummary>, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    if page.data.is_empty() {
        return Ok(writeln!(out, "No events.")?);
    }
    let now = time_format::now();
    let mut table = Table::new(["event", "type", "status", "age", "failed"].map(|name| (name, Align::Left)));
    // An id is long, and only the whole id is of use.
    let room = screen.width.saturating_sub(64).clamp(8, 32);
    for event in &page.data {
        let failed = event
            .errors
            .last()
            .map_or_else(String::new, |error| format!("{}× {}", event.retry_count, format::one_line(error)));
        table.row([
            event.id.to_string(),
            format::cut(&format::one_line(&event.event_type), room),
            format::one_line(event.status.as_str()),
            time_format::age(event.created_at.0, now),
            failed,
        ]);
    }
    table.print(out, screen)?;
    if let Some(next) = &page.next {
        let more = format!("More: redrive events list --after {}{}", format::one_line(next), api.flag());
        writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
    }
    Ok(())
}
