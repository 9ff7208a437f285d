//! `redrive dlq retry`: the way back.

use std::io::{IsTerminal, Write};

use clap::Args;
use redrive::EventId;
use serde::Serialize;
use serde_json::value::RawValue;

use super::filter_args::FilterArgs;
use super::rate::Rate;
use crate::failure::Failure;
use crate::label;
use crate::ledger::Ledger;
use crate::payload;
use crate::screen::{Screen, Style};

const EXAMPLES: &str = "\
Examples:
  redrive dlq retry 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19
  redrive dlq retry 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19 --payload '{\"order\": 7}'
  redrive dlq retry --all --type order.created --dry-run
  redrive dlq retry --all --reason attempts_exhausted --rate 50/s

An event that goes back is pending again, with all its attempts before it; what it went through stays in its history. A \
bus that is running picks it up within a second.";

/// Send dead events back to be handled again
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Retry {
    /// The events
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<EventId>,
    /// All that the filter matches; without a filter, all there are
    #[arg(long)]
    all: bool,
    /// Only say what would be sent back
    #[arg(long)]
    dry_run: bool,
    /// With --all: at most so many in a second
    #[arg(long, value_name = "N/s", requires = "all")]
    rate: Option<Rate>,
    /// With one ID: another payload, as JSON; the original is kept in its history
    #[arg(long, value_name = "JSON", conflicts_with = "all", value_parser = payload::parse)]
    payload: Option<Box<RawValue>>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    /// Dead events that were meant.
    matched: u64,
    /// That are on their way again.
    retried: u64,
    dry_run: bool,
    /// That could not be sent back.
    failed: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Refused {
    id: EventId,
    error: String,
}

impl Retry {
    /// Before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.all && self.filter.is_set() {
            return Err(Failure::Usage("a filter goes with --all, not with single events".to_owned()));
        }
        if self.payload.is_some() && self.ids.len() != 1 {
            return Err(Failure::Usage("--payload goes with exactly one ID".to_owned()));
        }
        Ok(())
    }

    pub(crate) async fn run(
        &self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let report = if self.all { self.all(ledger, screen).await? } else { self.each(ledger).await };
        if self.json {
            serde_json::to_writer(&mut *out, &report)?;
            writeln!(out)?;
        } else {
            report.print(out, screen)?;
        }
        match report.failed.len() {
            0 => Ok(()),
            1 => Err(Failure::Failed(format!("1 event was not sent back: {}", report.failed[0].error))),
            many => Err(Failure::Failed(format!(
                "{many} events were not sent back: {}, …",
                report.failed[0].error
            ))),
        }
    }

    async fn all(&self, ledger: &Ledger, screen: Screen) -> Result<Report, Failure> {
        let rate = self.rate.map(|Rate(rate)| rate);
        let spinner = spinner(screen);
        let done = ledger.retry_all(&self.filter.filter(), rate, self.dry_run).await?;
        spinner.finish_and_clear();
        let (matched, retried) = (done.matched, done.retried);
        Ok(Report { matched, retried, dry_run: self.dry_run, failed: Vec::new() })
    }

    async fn each(&self, ledger: &Ledger) -> Report {
        let mut report = Report { dry_run: self.dry_run, ..Report::default() };
        for id in &self.ids {
            let sent = if self.dry_run {
                ledger.dead_letter(*id).await.map(drop)
            } else {
                ledger.retry(*id, self.payload.as_deref()).await
            };
            match sent {
                Ok(()) => {
                    report.matched += 1;
                    report.retried += u64::from(!self.dry_run);
                }
                Err(failure) => report.failed.push(Refused { id: *id, error: failure.into_message() }),
            }
        }
        report
    }
}

impl Report {
    fn print(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if self.dry_run {
            let matched = label::counted(self.matched, "dead event");
            return Ok(writeln!(out, "{matched} would be sent back; nothing was changed")?);
        }
        if self.matched == 0 && self.failed.is_empty() {
            return Ok(writeln!(out, "No dead event matches.")?);
        }
        if self.retried == 0 {
            return Ok(()); // what is wrong is said elsewhere
        }
        let text = format!("{} on the way again", label::counted(self.retried, "event"));
        writeln!(out, "{}", screen.paint(Style::Good, text))?;
        if self.matched > self.retried {
            writeln!(
                out,
                "{} sent back by somebody else meanwhile",
                label::count(self.matched - self.retried)
            )?;
        }
        Ok(())
    }
}

/// Says that something goes on, to whoever watches.
fn spinner(screen: Screen) -> indicatif::ProgressBar {
    if !screen.colour || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let spinner = indicatif::ProgressBar::new_spinner().with_message("sending back…");
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}
