//! `redrive dlq show`: shows the dead letters of one event.

use std::io::Write;

use clap::Args;
use redrive::EventId;
use redrive_api::dlq::DeadLetter;
use redrive_api::time::Time;

use super::list::failures;
use crate::api::{Api, write_json};
use crate::events;
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, payload, time_format};

/// Show the dead letters of one event: payload, reason, every error and attempt
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The event
    #[arg(value_name = "ID")]
    id: EventId,
    /// Print one JSON object, with one entry or one for each subscription that is tracked on its own
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let dead = api.dlq().get(*self.id.as_uuid()).await?;
        if self.json {
            return write_json(out, &dead);
        }
        for dead in &dead.data {
            print(dead, out, screen)?;
        }
        let (id, flag) = (self.id, api.flag());
        writeln!(out, "\nRedrive it:           redrive dlq retry {id}{flag}")?;
        writeln!(out, "With another payload: redrive dlq retry {id}{flag} --payload '{{…}}'")?;
        Ok(())
    }
}

fn print(dead: &DeadLetter, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    let now = time_format::now();
    let title = format!("{} {}", format::one_line(&dead.event_type), dead.id);
    writeln!(out, "{}", screen.paint(Style::Strong, title))?;
    let when = |at: Time| format!("{at} ({})", time_format::relative(at.0, now));
    writeln!(out, "  published  {}", when(dead.created_at))?;
    let died = format!("{}, {}", when(dead.dlq_at), failures(&dead.reason, &dead.errors));
    writeln!(out, "  died       {}", screen.paint(Style::Bad, died))?;
    if let Some(subscription) = &dead.subscription {
        writeln!(out, "  by         {}", format::one_line(subscription))?;
    }
    events::metadata(&dead.metadata, out)?;
    writeln!(out, "\n{}\n{}", screen.paint(Style::Quiet, "payload"), payload::pretty(dead.payload.get()))?;
    if dead.attempts.is_empty() && !dead.errors.is_empty() {
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "errors"))?;
        for error in &dead.errors {
            writeln!(out, "  {}", format::one_line(error))?;
        }
    }
    events::attempts(&dead.attempts, out, screen)?;
    Ok(())
}
