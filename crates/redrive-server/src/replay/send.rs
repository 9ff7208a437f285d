//! `redrive replay event` and `redrive replay endpoint`.

use std::io::Write;

use clap::Args;
use redrive::{EventId, Timestamp};
use redrive_webhook::EndpointId;
use serde_json::{Map, Value, json};

use super::jobs::Job;
use crate::failure::Failure;
use crate::place::Place;
use crate::{label, moment};

/// Send an event to one endpoint again, or for the first time
#[derive(Debug, Args)]
pub(super) struct ReplayEvent {
    /// The event
    #[arg(value_name = "ID")]
    id: EventId,
    /// To whom
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: EndpointId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl ReplayEvent {
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let body = json!({ "endpoint": self.endpoint });
        let answer: Value = place.post(&format!("/v1/events/{}/replay", self.id), &body).await?;
        if self.json {
            return Ok(writeln!(out, "{answer}")?);
        }
        if answer["replayed"] != true {
            return Ok(writeln!(
                out,
                "Event {} is still on its way to {}; nothing was changed.",
                self.id, self.endpoint
            )?);
        }
        writeln!(out, "Event {} goes to {} again.", self.id, self.endpoint)?;
        who_works(place, out)
    }
}

/// On a database nothing is sent from here.
fn who_works(place: &Place, out: &mut impl Write) -> Result<(), Failure> {
    if place.is_database() {
        writeln!(
            out,
            "It is stored; the server that runs on this database sends it, or the next one that does."
        )?;
    }
    Ok(())
}

/// Send everything that an endpoint has given up to it again
#[derive(Debug, Args)]
pub(super) struct ReplayEndpoint {
    /// The endpoint
    #[arg(value_name = "ENDPOINT")]
    id: EndpointId,
    /// Only events published at or after this: an age such as 2h, or an instant such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = moment::parse)]
    since: Option<Timestamp>,
    /// Only events published before this
    #[arg(long, value_name = "WHEN", value_parser = moment::parse)]
    until: Option<Timestamp>,
    /// How many in a second [default: 100]
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl ReplayEndpoint {
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let mut body = Map::new();
        if let Some(since) = self.since {
            body.insert("since".into(), since.to_string().into());
        }
        if let Some(until) = self.until {
            body.insert("until".into(), until.to_string().into());
        }
        if let Some(rate) = self.per_second {
            body.insert("per_second".into(), rate.into());
        }
        body.insert("dry_run".into(), self.dry_run.into());
        let answer: Value = place.post(&format!("/v1/endpoints/{}/replays", self.id), &body.into()).await?;
        if self.json {
            return Ok(writeln!(out, "{answer}")?);
        }
        if self.dry_run {
            let count = answer["would_replay"].as_u64().unwrap_or_default();
            return Ok(writeln!(out, "{} would go to {} again.", label::counted(count, "event"), self.id)?);
        }
        let job = Job::read(&answer)?;
        writeln!(out, "Replay {} has begun, {} events a second.", job.id, job.per_second)?;
        who_works(place, out)?;
        Ok(writeln!(out, "How it goes: redrive replay show {}{}", job.id, place.flag())?)
    }
}
