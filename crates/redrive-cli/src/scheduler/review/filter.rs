//! Selects messages in review by queue, error and time.

use clap::Args;
use redrive::retry::Timestamp;
use redrive_api::client;
use redrive_api::page::Page;
use redrive_api::review::ReviewSummary;

use crate::api::{PageArgs, Session};
use crate::time_format;

/// Selects messages in review; every given flag must match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filter")]
pub(super) struct ReviewFilter {
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

impl ReviewFilter {
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
        page.collect(async |query| {
            let mut page = api.review().list(query).await?;
            page.data.retain(|task| self.matches(task));
            Ok(page)
        })
        .await
    }

    fn matches(&self, task: &ReviewSummary) -> bool {
        let has_error = |text: &String| task.error_reason.contains(text) || task.why.contains(text);
        self.from.as_ref().is_none_or(|queue| task.original_queue == *queue)
            && self.error.as_ref().is_none_or(has_error)
            && self.since.is_none_or(|since| task.reviewed_at.0 >= since)
            && self.until.is_none_or(|until| task.reviewed_at.0 < until)
    }
}
