//! `redrive endpoints attempts`: what was sent, and what came of it.

use std::io::Write;

use clap::Args;
use redrive_webhook::EndpointId;
use serde::Deserialize;
use serde_json::Value;

use super::path;
use super::test::Record;
use crate::api::time::Instant;
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};
use crate::{label, moment};

/// List what was sent to an endpoint and what came of it, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
--json has everything: the status, the headers and the body of each answer as far as they were kept.")]
pub(super) struct Attempts {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Continue where the last page ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Attempt {
    event_id: String,
    event_type: String,
    attempt: u32,
    started_at: Instant,
    duration_ms: u64,
    succeeded: bool,
    delay_ms: u64,
    error: Option<String>,
    record: Option<Record>,
}

impl Attempts {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let after = self.after.map_or_else(String::new, |after| format!("&after={after}"));
        let page: Value =
            place.get(&format!("{}/attempts?limit={}{after}", path(&self.id), self.limit)).await?;
        if self.json {
            return Ok(writeln!(out, "{page}")?);
        }
        let attempts: Vec<Attempt> = serde_json::from_value(page["data"].clone())
            .map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))?;
        if attempts.is_empty() {
            return Ok(writeln!(out, "Nothing was sent to it yet.")?);
        }
        let now = moment::now();
        let mut table =
            Table::new(["event", "n", "when", "took", "answer", "type"].map(|name| (name, Align::Left)));
        for attempt in &attempts {
            table.row([
                label::one_line(&attempt.event_id),
                attempt.attempt.to_string(),
                moment::relative(attempt.started_at.0, now),
                label::duration(attempt.duration_ms),
                attempt.outcome(),
                attempt.about(),
            ]);
        }
        table.print(out, screen)?;
        if let Some(next) = page["next"].as_str() {
            let (id, next) = (&self.id, label::one_line(next));
            let more = format!("More: redrive endpoints attempts {id} --after {next}{}", place.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

impl Attempt {
    /// The status, and what became of it.
    fn outcome(&self) -> String {
        let status = self.record.as_ref().and_then(|record| record.status);
        let status = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        match self.delay_ms {
            _ if self.succeeded => status,
            0 => format!("{status}, given up"),
            wait => format!("{status}, again after {}", label::duration(wait)),
        }
    }

    fn about(&self) -> String {
        let why = self.error.as_deref().map_or_else(String::new, |why| format!(": {}", label::one_line(why)));
        format!("{}{why}", label::one_line(&self.event_type))
    }
}
