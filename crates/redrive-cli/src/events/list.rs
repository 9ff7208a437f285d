//! `redrive events list`: lists events, newest first.

use clap::Args;
use redrive::EventType;
use redrive::events::EventStatus;
use redrive_api::events::{EventFilter, EventSummary};

use super::show::style;
use crate::api::{PageArgs, Session};
use crate::failure::Failure;
use crate::table::Table;
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
    #[command(flatten)]
    page: PageArgs,
}

impl List {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let filter = EventFilter {
            status: self.status.map(|status| status.to_string().into()),
            event_type: self.event_type.map(|name| name.to_string()),
        };
        let page = self.page.collect(async |page| api.events().list(&filter, page).await).await?;
        api.page(page, "events list", "No events.", |api, events| {
            let failed = |event: &EventSummary| {
                let error = format::one_line(event.errors.last()?);
                Some(format!("{}× {error}", event.retry_count))
            };
            let row = |event: &EventSummary| {
                [
                    event.id.to_string(),
                    format::one_line(&event.event_type),
                    format::one_line(event.status.as_str()),
                    time_format::age(event.created_at.0),
                    failed(event).unwrap_or_default(),
                ]
            };
            let table = Table::new(["event", "type", "status", "age", "failed"], events.iter().map(row));
            let table = table.whole(&[0]).styles(2, events.iter().map(|event| style(&event.status)));
            table.print(api.out, api.screen)
        })
    }
}
