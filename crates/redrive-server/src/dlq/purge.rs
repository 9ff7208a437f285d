//! `redrive dlq purge`: deletes dead events for good.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use redrive::DlqFilter;
use redrive_retry::{format_duration, parse_duration};
use serde::Serialize;

use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::{label, moment};

/// Delete old dead events for good
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq export old.jsonl --until 7d
  redrive dlq purge --older-than 7d --yes

Without --yes it asks first; where nobody can answer, it deletes nothing.")]
pub(crate) struct Purge {
    /// Those published at least this long ago, such as 7d
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    older_than: Duration,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    purged: u64,
}

impl Purge {
    pub(crate) async fn run(&self, ledger: &Ledger, out: &mut impl Write) -> Result<(), Failure> {
        let until = moment::ago(self.older_than);
        let age = format_duration(self.older_than);
        // A filter ends before its instant, a purge includes it.
        let filter = DlqFilter { until: Some(until.plus_millis(1)), ..DlqFilter::default() };
        let found = ledger.retry_all(&filter, None, true).await?.matched;
        let is_meant = found > 0 && (self.yes || is_meant(found, &age)?);
        let purged = if is_meant { ledger.purge(self.older_than, until).await? } else { 0 };
        if self.json {
            serde_json::to_writer(&mut *out, &Report { purged })?;
            return Ok(writeln!(out)?);
        }
        Ok(writeln!(out, "{} deleted", label::counted(purged, "dead event"))?)
    }
}

/// Asks.
fn is_meant(found: u64, age: &str) -> Result<bool, Failure> {
    let found = label::counted(found, "dead event");
    if !io::stdin().is_terminal() {
        return Err(Failure::Failed(format!(
            "{found} at least {age} old would be deleted for good, and nobody is there to be asked: add --yes"
        )));
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "Delete {found} at least {age} old for good? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
