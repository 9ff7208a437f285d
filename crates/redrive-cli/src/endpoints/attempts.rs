//! `redrive endpoints attempts`: lists the attempts to deliver webhooks.

use std::io::Write;

use clap::Args;
use redrive_api::endpoints::EndpointAttempt;
use redrive_api::page::PageQuery;
use redrive_webhook::EndpointId;

use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{format, time_format};

/// List the attempts to deliver webhooks to an endpoint, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
--json has everything: status, headers and body of each answer as far as they were recorded.")]
pub(super) struct Attempts {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Attempts {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let page = PageQuery { limit: Some(self.limit), after: self.after };
        let page = api.endpoints().attempts(self.id.as_str(), &page).await?;
        if self.json {
            return write_json(out, &page);
        }
        if page.data.is_empty() {
            return Ok(writeln!(out, "No attempts yet.")?);
        }
        let now = time_format::now();
        let mut table =
            Table::new(["event", "n", "when", "took", "answer", "type"].map(|name| (name, Align::Left)));
        for attempt in &page.data {
            let why = attempt.error.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            table.row([
                attempt.event_id.to_string(),
                attempt.attempt.to_string(),
                time_format::relative(attempt.started_at.0, now),
                format::duration(attempt.duration_ms),
                outcome(attempt),
                format::one_line(&format!("{}{why}", attempt.event_type)),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = &page.next {
            let (id, next) = (&self.id, format::one_line(next));
            let more = format!("More: redrive endpoints attempts {id} --after {next}{}", api.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

/// The status, and what follows.
fn outcome(attempt: &EndpointAttempt) -> String {
    let status = attempt.record.as_ref().and_then(|record| record.status);
    let status = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
    match attempt.delay_ms {
        _ if attempt.succeeded => status,
        0 => format!("{status}, dead-lettered"),
        wait => format!("{status}, again after {}", format::duration(wait)),
    }
}
