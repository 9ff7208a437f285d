//! `redrive endpoints attempts`: lists the attempts to deliver messages.

use clap::Args;
use redrive_api::endpoints::{AttemptFilter, EndpointAttempt};
use redrive_webhook::EndpointId;

use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;
use crate::table::Table;

/// List the attempts to deliver messages to an endpoint, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
--json has everything: status, headers and body of each response as far as they were recorded.")]
pub(super) struct Attempts {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Only failed attempts
    #[arg(long)]
    failed: bool,
    #[command(flatten)]
    page: PageArgs,
}

impl Attempts {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let id = self.id.as_str();
        let filter = AttemptFilter { failed: self.failed };
        let page =
            self.page.collect(async |query| api.endpoints().attempts(id, &filter, query).await).await?;
        let (command, none) = match self.failed {
            true => (format!("endpoints attempts {id} --failed"), "No failed attempts."),
            false => (format!("endpoints attempts {id}"), "No attempts yet."),
        };
        api.page(page, &command, none, |api, attempts| {
            let row = |attempt: &EndpointAttempt| {
                let why = attempt.error.as_ref().map_or_else(String::new, |why| format!(": {why}"));
                [
                    attempt.event_id.to_string(),
                    attempt.attempt.to_string(),
                    relative(attempt.started_at),
                    format::duration(attempt.duration_ms),
                    outcome(attempt),
                    format::one_line(&format!("{}{why}", attempt.event_type)),
                ]
            };
            let heading = ["event", "n", "when", "took", "response", "type"];
            let style = |one: &EndpointAttempt| if one.succeeded { Style::Good } else { Style::Bad };
            let table = Table::new(heading, attempts.iter().map(row)).whole(&[0]);
            table.styles(4, attempts.iter().map(style)).print(api.out, api.screen)
        })
    }
}

/// The HTTP status, and whether a retry follows.
fn outcome(attempt: &EndpointAttempt) -> String {
    let status = attempt.request.as_ref().and_then(|request| request.status);
    let status = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
    match attempt.delay_ms {
        _ if attempt.succeeded => status,
        0 => format!("{status}, dead-lettered"),
        wait => format!("{status}, again after {}", format::duration(wait)),
    }
}
