//! `redrive dlq retry`: redrives dead letters.

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use clap::Args;
use redrive::EventId;
use redrive_api::client::Client;
use redrive_api::dlq::{DlqFilter, RetryDead, RetryDeadMany, RetryReport};
use serde_json::value::RawValue;

use super::filter_args::FilterArgs;
use super::rate::Rate;
use crate::api::{Session, write_json};
use crate::confirm::is_meant;
use crate::failure::Failure;
use crate::format;
use crate::payload;
use crate::screen::{Screen, Style};

/// Events of one request.
const BATCH: u32 = 1000;

const EXAMPLES: &str = "\
Examples:
  redrive dlq retry 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19
  redrive dlq retry 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19 --payload '{\"order\": 7}'
  redrive dlq retry --all --type order.created --dry-run
  redrive dlq retry --all --reason attempts_exhausted --rate 50/s

With --all it says the number and, with --rate, how long it takes, and asks first; --yes does not ask. A redriven event is pending again with all its attempts; its history stays on record. A running bus picks it up within a second.";

/// Redrive dead letters: make them pending again with all attempts
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Retry {
    /// Ids of the events
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<EventId>,
    /// Redrive every dead letter that the filter matches; without a filter, all of them
    #[arg(long)]
    all: bool,
    /// Count the matches and change nothing
    #[arg(long)]
    dry_run: bool,
    /// With --all: redrive without asking
    #[arg(long, requires = "all")]
    yes: bool,
    /// With --all: at most this many per second
    #[arg(long, value_name = "N/s", requires = "all")]
    rate: Option<Rate>,
    /// With one ID: another payload, as JSON; the history keeps the original
    #[arg(long, value_name = "JSON", conflicts_with = "all", value_parser = payload::parse)]
    payload: Option<Box<RawValue>>,
    #[command(flatten)]
    filter: FilterArgs,
}

impl Retry {
    /// Checks the flags before the database is opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.all && self.filter.is_set() {
            return Err(Failure::Usage("a filter goes with --all, not with single events".to_owned()));
        }
        if self.payload.is_some() && self.ids.len() != 1 {
            return Err(Failure::Usage("--payload goes with exactly one ID".to_owned()));
        }
        Ok(())
    }

    pub(super) async fn run(&self, api: &mut Session<'_>) -> Result<(), Failure> {
        if !self.all {
            return self.each(api).await;
        }
        let (filter, rate) = (self.filter.filter(), self.rate.map(|Rate(rate)| rate));
        // The number is read first where it is asked or said.
        if self.dry_run || !self.yes || rate.is_some() {
            let found = retry_all(api, &filter, None, true).await?;
            let how_long = rate.map_or_else(String::new, |rate| takes(found.matched, rate));
            let letters = format!("{}{how_long}", format::counted(found.matched, "dead letter"));
            let is_refused = || Ok::<_, Failure>(!self.yes && !is_meant(&format!("redrive {letters}"))?);
            if self.dry_run || found.matched > 0 && is_refused()? {
                return Self::print(found, true, api);
            }
            if rate.is_some() && found.matched > 0 {
                // A closed standard error is no failure.
                let _ = writeln!(std::io::stderr().lock(), "note: redriving {letters}");
            }
        }
        let spinner = spinner(api.screen);
        let report = retry_all(api, &filter, rate, false).await?;
        spinner.finish_and_clear();
        Self::print(report, false, api)
    }

    /// Redrives single events. One that cannot be redriven does not stop the others.
    async fn each(&self, api: &mut Session<'_>) -> Result<(), Failure> {
        let (mut report, mut failed) = (RetryReport::default(), Vec::new());
        let how = RetryDead { payload: self.payload.clone() };
        for id in self.ids.iter().map(EventId::as_uuid) {
            let sent = if self.dry_run {
                api.dlq().get(*id).await.map(|_| None)
            } else {
                api.dlq().retry(*id, &how).await.map(Some)
            };
            if let Ok(Some(retried)) = &sent {
                report.retried += 1;
                if api.json {
                    write_json(api.out, retried)?;
                }
            }
            match sent {
                Ok(_) => report.matched += 1,
                Err(error) => failed.push(Failure::from(error).into_message()),
            }
        }
        if self.dry_run || (!api.json && (failed.is_empty() || report.retried > 0)) {
            Self::print(report, self.dry_run, api)?;
        }
        match failed.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::Failed(format!("1 event was not redriven: {one}"))),
            [first, ..] => {
                Err(Failure::Failed(format!("{} events were not redriven: {first}, …", failed.len())))
            }
        }
    }

    fn print(report: RetryReport, is_count: bool, api: &mut Session<'_>) -> Result<(), Failure> {
        api.print_response(report, |api, report| {
            let matched = format::counted(report.matched, "dead letter");
            if is_count {
                return Ok(writeln!(api.out, "{matched} would be redriven; nothing was changed")?);
            }
            if report.matched == 0 {
                return Ok(writeln!(api.out, "No dead letter matches.")?);
            }
            let text = format!("{} redriven", format::counted(report.retried, "event"));
            writeln!(api.out, "{}", api.screen.paint(Style::Good, text))?;
            if report.matched > report.retried {
                let others = format::count(report.matched - report.retried);
                writeln!(api.out, "{others} redriven by another process meanwhile")?;
            }
            Ok(())
        })
    }
}

/// Redrives every event that a filter matches, request by request, or only counts them.
pub(super) async fn retry_all(
    api: &Client,
    filter: &DlqFilter,
    rate: Option<u32>,
    dry_run: bool,
) -> Result<RetryReport, Failure> {
    let mut total = RetryReport::default();
    let mut how = RetryDeadMany { filter: filter.clone(), dry_run, rate, limit: Some(BATCH), after: None };
    loop {
        let report = api.dlq().retry_many(&how).await?;
        total.matched += report.matched;
        total.retried += report.retried;
        how.after = report.next;
        if how.after.is_none() {
            return Ok(total);
        }
        // The server spreads the events of one request; the next request waits until their due times have passed.
        if let Some(rate) = rate.filter(|_| !dry_run) {
            tokio::time::sleep(Duration::from_secs(report.matched) / rate).await;
        }
    }
}

/// Describes the duration of a redrive of `number` events at a rate, for people.
fn takes(number: u64, rate: u32) -> String {
    let time = format::short_duration(number.saturating_mul(1000) / u64::from(rate));
    format!(" at {rate}/s, which takes about {time}")
}

/// Shows progress on a terminal.
fn spinner(screen: Screen) -> indicatif::ProgressBar {
    if !screen.colour || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let spinner = indicatif::ProgressBar::new_spinner().with_message("redriving…");
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrive_at_a_rate_says_how_long_it_takes() {
        assert_eq!(takes(12_000, 50), " at 50/s, which takes about 4m");
        assert_eq!(takes(7, 1000), " at 1000/s, which takes about 7ms");
    }
}
