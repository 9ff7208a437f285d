//! `redrive replay event` and `redrive replay endpoint`.

use std::time::Duration;

use clap::Args;
use redrive::EventId;
use redrive::retry::Timestamp;
use redrive_api::replays::{self, BeginReplay};
use redrive_api::time::Time;
use redrive_webhook::EndpointId;

use crate::api::Session;
use crate::failure::Failure;
use crate::time_format::millis;
use crate::{format, time_format};

/// Send an event to one endpoint again, or for the first time
#[derive(Debug, Args)]
pub(super) struct ReplayEvent {
    /// The event
    #[arg(value_name = "ID")]
    id: EventId,
    /// The endpoint
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: EndpointId,
}

impl ReplayEvent {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let to = replays::ReplayEvent { endpoint: self.endpoint.to_string() };
        let replayed = api.events().replay(*self.id.as_uuid(), &to).await?;
        api.print_response(replayed, |api, response| {
            let (id, endpoint) = (self.id, self.endpoint);
            if !response.replayed {
                let text = format!("The delivery of {id} to {endpoint} is still open; nothing was changed.");
                return Ok(writeln!(api.out, "{text}")?);
            }
            writeln!(api.out, "Event {id} goes to {endpoint} again.")?;
            note_sender(api)
        })
    }
}

/// Says that a server sends, and not this command.
fn note_sender(api: &mut Session<'_>) -> Result<(), Failure> {
    if api.is_database() {
        writeln!(api.out, "It is stored; the server that runs on this database sends it, or the next one.")?;
    }
    Ok(())
}

/// Send the dead letters of an endpoint to it again
#[derive(Debug, Args)]
pub(super) struct ReplayEndpoint {
    /// The endpoint
    #[arg(value_name = "ENDPOINT")]
    id: EndpointId,
    /// Only events published at or after this: an age such as 2h, or an instant such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    since: Option<Timestamp>,
    /// Only events published before this
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    until: Option<Timestamp>,
    /// Events per second [default: 100]
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// Count the matches and send nothing
    #[arg(long)]
    dry_run: bool,
}

impl ReplayEndpoint {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let (since, until) = (self.since.map(Time), self.until.map(Time));
        let how = BeginReplay { since, until, per_second: self.per_second, dry_run: self.dry_run };
        let id = self.id.as_str();
        if self.dry_run {
            let count = api.endpoints().count_replay(id, &how).await?;
            return api.print_response(count, |api, count| {
                let count = format::counted(count.would_replay, "event");
                Ok(writeln!(api.out, "{count} would go to {id} again.")?)
            });
        }
        let count = if api.json { 0 } else { api.endpoints().count_replay(id, &how).await?.would_replay };
        let job = api.endpoints().replay(id, &how).await?;
        api.print_response(job, |api, job| {
            let time = Duration::try_from_secs_f64(count as f64 / job.per_second).unwrap_or(Duration::MAX);
            let (count, time) = (format::counted(count, "event"), format::short_duration(millis(time)));
            writeln!(
                api.out,
                "Replay {} has started: {count} at {}/s, which takes about {time}.",
                job.id, job.per_second
            )?;
            note_sender(api)?;
            Ok(writeln!(api.out, "Show its progress: redrive replay show {}{}", job.id, api.flag)?)
        })
    }
}
