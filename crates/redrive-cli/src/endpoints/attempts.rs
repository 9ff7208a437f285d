//! `redrive endpoints attempts`: lists the attempts to deliver messages.

use clap::Args;
use redrive_api::endpoints::EndpointAttempt;
use redrive_webhook::EndpointId;

use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::format;
use crate::table::Table;

/// List the attempts to deliver messages to an endpoint, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
--json has everything: status, headers and body of each response as far as they were recorded.")]
pub(super) struct Attempts {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    #[command(flatten)]
    page: PageArgs,
}

impl Attempts {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let id = self.id.as_str();
        let page = self.page.collect(async |page| api.endpoints().attempts(id, page).await).await?;
        api.page(page, &format!("endpoints attempts {id}"), "No attempts yet.", |api, attempts| {
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
            Table::new(heading, attempts.iter().map(row)).print(api.out, api.screen)
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
