//! `redrive dlq purge`: deletes dead letters for good.

use std::time::Duration;

use clap::Args;
use redrive_api::dlq::{DlqFilter, Purged};
use redrive_api::time::Time;
use redrive_retry::duration::{format_duration, parse_duration};

use super::retry::retry_all;
use crate::api::Session;
use crate::confirm::is_meant;
use crate::failure::Failure;
use crate::{format, time_format};

/// Delete old dead letters for good
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq export old.jsonl --until 7d
  redrive dlq purge --older-than 7d --yes

Without --yes it says the number and asks first; without a terminal to ask on, it deletes nothing.")]
pub(crate) struct Purge {
    /// Delete dead letters published at least this long ago, such as 7d
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    older_than: Duration,
    /// Count the matches and delete nothing
    #[arg(long)]
    dry_run: bool,
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
        let found = retry_all(api, &filter, None, true).await?;
        let letters = format::counted(found.matched, "dead letter");
        if self.dry_run {
            return api.print_response(found, |api, _| {
                Ok(writeln!(api.out, "{letters} would be deleted; nothing was changed")?)
            });
        }
        let question = format!("delete {letters} at least {age} old for good");
        let is_meant = found.matched > 0 && (self.yes || is_meant(&question)?);
        let purged = if is_meant { api.dlq().purge(self.older_than).await? } else { Purged { purged: 0 } };
        api.print_response(purged, |api, Purged { purged }| {
            Ok(writeln!(api.out, "{} deleted", format::counted(purged, "dead letter"))?)
        })
    }
}
