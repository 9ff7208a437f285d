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
        api.page(page, "events list", "No events.", |api, events| table(events).print(api.out, api.screen))
    }
}

/// The events with their states in colour.
fn table(events: &[EventSummary]) -> Table<5> {
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
    table.whole(&[0]).styles(2, events.iter().map(|event| style(&event.status)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Screen;

    #[test]
    fn states_have_colours_on_a_terminal() {
        let event = |status: &str| -> EventSummary {
            serde_json::from_value(serde_json::json!({
                "id": "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19", "type": "order.created", "metadata": {}, "status": status,
                "retry_count": 0, "errors": [], "due_at": null, "deliveries": [],
                "created_at": "2026-01-31T12:00:00Z", "updated_at": "2026-01-31T12:00:00Z"
            }))
            .unwrap()
        };
        let mut out = Vec::new();
        let screen = Screen { width: 120, cuts: true, colour: true };
        table(&[event("done"), event("dlq")]).print(&mut out, screen).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\x1b[36mdone") && text.contains("\x1b[31mdlq"), "{text}");
    }
}
