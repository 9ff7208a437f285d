//! Selects messages in review by queue, error and time.

use clap::Args;
use redrive::retry::Timestamp;
use redrive_api::client;
use redrive_api::page::Page;
use redrive_api::review::{ReviewFilter, ReviewSummary};
use redrive_api::time::Time;

use crate::api::{PageArgs, Session};
use crate::time_format;

/// Selects messages in review; every given flag must match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filter")]
pub(super) struct FilterArgs {
    /// Only messages of this original queue
    #[arg(long, value_name = "QUEUE")]
    from: Option<String>,
    /// Only messages with this text in their last error or in the reason for the review
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only messages in review since this or later: an instant, or an age such as 2h
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    since: Option<Timestamp>,
    /// Only messages in review since before this: an instant, or an age such as 2h
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    until: Option<Timestamp>,
}

impl FilterArgs {
    /// Whether any flag is given.
    pub(super) fn is_set(&self) -> bool {
        self.from.is_some() || self.error.is_some() || self.since.is_some() || self.until.is_some()
    }

    /// Says that nothing matches.
    pub(super) fn none(&self) -> &'static str {
        if self.is_set() { "No message in review matches." } else { "The review queue is empty." }
    }

    /// Reads the selected messages of a page.
    pub(super) async fn collect(
        &self,
        page: PageArgs,
        api: &Session<'_>,
    ) -> client::Result<Page<ReviewSummary>> {
        let (from, error) = (self.from.clone(), self.error.clone());
        let filter = ReviewFilter { from, error, since: self.since.map(Time), until: self.until.map(Time) };
        page.collect(async |query| api.review().list(&filter, query).await).await
    }
}
