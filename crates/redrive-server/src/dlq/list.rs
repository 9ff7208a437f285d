//! `redrive dlq list`: dead events, newest first.

use std::io::Write;

use clap::Args;
use redrive::{DeadLetter, DlqCursor, Unread};
use serde::Serialize;

use super::filter_args::FilterArgs;
use crate::failure::Failure;
use crate::ledger::{Ledger, Part};
use crate::screen::{Screen, Style};
use crate::{label, moment};

/// List dead events, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq list --type order.created --since 1h
  redrive dlq list --json | jq -r .dead_letters[].id")]
pub(crate) struct List {
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Continue where the last page ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<DlqCursor>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, Serialize)]
struct Page<P> {
    dead_letters: Vec<DeadLetter<P>>,
    /// For `--after`, if there is more.
    next: Option<String>,
}

impl List {
    pub(crate) async fn run(
        &self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let filter = self.filter.filter();
        if self.json {
            let page = Page::from(ledger.dead_letters(&filter, self.limit, self.after).await?);
            serde_json::to_writer(&mut *out, &page)?;
            return Ok(writeln!(out)?);
        }
        let page = Page::from(ledger.dead_letters_in_short(&filter, self.limit, self.after).await?);
        page.print(ledger, out, screen, self.filter.is_set())
    }
}

impl<P> From<Part<DeadLetter<P>, DlqCursor>> for Page<P> {
    fn from(part: Part<DeadLetter<P>, DlqCursor>) -> Self {
        Page { dead_letters: part.items, next: part.next.map(|cursor| cursor.to_string()) }
    }
}

impl Page<Unread> {
    fn print(
        &self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
        filtered: bool,
    ) -> Result<(), Failure> {
        if self.dead_letters.is_empty() {
            let none = if filtered { "No dead event matches." } else { "The dead-letter queue is empty." };
            return Ok(writeln!(out, "{none}")?);
        }
        let now = moment::now();
        for dead in &self.dead_letters {
            let died = moment::relative(dead.dlq_at, now);
            let by = dead.subscription.as_ref().map_or_else(String::new, |name| format!(" by {name}"));
            let about = format!("  {}  {died}{by}, {}", dead.event_type, failures(dead));
            let about = label::cut(&about, screen.width.saturating_sub(36));
            writeln!(out, "{}{about}", screen.paint(Style::Strong, dead.id))?;
            let error = label::one_line(dead.errors.last().map_or(&dead.reason, |error| error));
            writeln!(
                out,
                "  {}",
                screen.paint(Style::Bad, label::cut(&error, screen.width.saturating_sub(2)))
            )?;
        }
        if let Some(next) = &self.next {
            let more = format!("More: redrive dlq list --after {next}{}", ledger.flag());
            writeln!(out, "{}", screen.paint(Style::Quiet, more))?;
        }
        Ok(())
    }
}

/// After how much it was given up.
pub(super) fn failures<P>(dead: &DeadLetter<P>) -> String {
    match dead.reason.as_str() {
        "permanent" => "at once: permanent".to_owned(),
        "attempts_exhausted" => format!("after {}", label::counted(dead.errors.len() as u64, "attempt")),
        other => label::one_line(other),
    }
}
