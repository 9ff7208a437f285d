//! `redrive dlq list`: lists dead letters, newest first.

use std::io::Write;

use clap::Args;

use super::filter_args::FilterArgs;
use crate::api::{Api, collect, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, time_format};

/// List dead letters, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq list --type order.created --since 1h
  redrive dlq list --json | jq -r .data[].id")]
pub(crate) struct List {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Continue after the last page
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

impl List {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let filter = self.filter.filter();
        let page = collect(self.limit, self.after, async |page| api.dlq().list(&filter, page).await).await?;
        if self.json {
            return write_json(out, &page);
        }
        if page.data.is_empty() {
            let is_filtered = self.filter.is_set();
            let none =
                if is_filtered { "No dead letter matches." } else { "The dead-letter queue is empty." };
            return Ok(writeln!(out, "{none}")?);
        }
        let now = time_format::now();
        for dead in &page.data {
            let died = time_format::relative(dead.dlq_at.0, now);
            let by = dead.subscription.as_ref().map_or_else(String::new, |name| format!(" by {name}"));
            let failures = failures(&dead.reason, &dead.errors);
            let about = format::one_line(&format!("{} {died}{by}, {failures}", dead.event_type));
            let about = format::cut(&about.replacen(' ', "  ", 1), screen.width.saturating_sub(38));
            writeln!(out, "{}  {about}", screen.paint(Style::Strong, dead.id))?;
            let error = format::one_line(dead.errors.last().unwrap_or(&dead.reason));
            let error = format::cut(&error, screen.width.saturating_sub(2));
            writeln!(out, "  {}", screen.paint(Style::Bad, error))?;
        }
        if let Some(next) = &page.next {
            let more = format!("More: redrive dlq list --after {}{}", format::one_line(next), api.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

/// Says after how many attempts, or why, an event was dead-lettered.
pub(super) fn failures(reason: &str, errors: &[String]) -> String {
    match reason {
        "permanent" => "at once: permanent".to_owned(),
        "attempts_exhausted" => format!("after {}", format::counted(errors.len() as u64, "attempt")),
        other => format::one_line(other),
    }
}
