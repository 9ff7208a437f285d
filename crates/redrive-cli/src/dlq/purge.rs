//! `redrive dlq purge`: deletes dead letters for good.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use redrive_api::dlq::{DlqFilter, Purged};
use redrive_api::time::Time;
use redrive_retry::duration::{format_duration, parse_duration};

use super::retry::retry_all;
use crate::api::Session;
use crate::failure::Failure;
use crate::{format, time_format};

/// Delete old dead letters for good
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq export old.jsonl --until 7d
  redrive dlq purge --older-than 7d --yes

Without --yes it asks first; without a terminal to ask on, it deletes nothing.")]
pub(crate) struct Purge {
    /// Delete dead letters published at least this long ago, such as 7d
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    older_than: Duration,
    /// Delete without asking
    #[arg(long)]
    yes: bool,
}

impl Purge {
    pub(crate) async fn run(&self, api: &mut Session<'_>) -> Result<(), Failure> {
        let until = time_format::ago(self.older_than);
        let age = format_duration(self.older_than);
        // A filter excludes its end, a purge includes it.
        let filter = DlqFilter { until: Some(Time(until.plus_millis(1))), ..DlqFilter::default() };
        let found = retry_all(api, &filter, None, true).await?.matched;
        let is_meant = found > 0 && (self.yes || is_meant(found, &age)?);
        let purged = if is_meant { api.dlq().purge(self.older_than).await? } else { Purged { purged: 0 } };
        api.print_response(purged, |api, Purged { purged }| {
            Ok(writeln!(api.out, "{} deleted", format::counted(purged, "dead letter"))?)
        })
    }
}

/// Asks for confirmation.
fn is_meant(found: u64, age: &str) -> Result<bool, Failure> {
    let found = format::counted(found, "dead letter");
    if !io::stdin().is_terminal() {
        return Err(Failure::Failed(format!(
            "{found} at least {age} old would be deleted for good, and there is no terminal to ask on: add --yes"
        )));
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "Delete {found} at least {age} old for good? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
