//! `redrive dlq show`: everything about one dead event.

use std::io::Write;

use clap::Args;
use redrive::{DeadLetter, EventId};

use super::list::failures;
use crate::events;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::screen::{Screen, Style};
use crate::{label, moment, payload};

/// Show one dead event: payload, reason, every error and attempt
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
    pub(crate) async fn run(
        &self,
        ledger: &Ledger,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let dead = ledger.dead_letter(self.id).await?;
        if self.json {
            serde_json::to_writer(&mut *out, &serde_json::json!({ "dead_letters": dead }))?;
            return Ok(writeln!(out)?);
        }
        for dead in &dead {
            print(dead, out, screen)?;
        }
        let (id, flag) = (self.id, ledger.flag());
        writeln!(out, "\nSend it back:         redrive dlq retry {id}{flag}")?;
        writeln!(out, "With another payload: redrive dlq retry {id}{flag} --payload '{{…}}'")?;
        Ok(())
    }
}

fn print(dead: &DeadLetter, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    let now = moment::now();
    writeln!(out, "{}", screen.paint(Style::Strong, format!("{} {}", dead.event_type, dead.id)))?;
    writeln!(out, "  published  {} ({})", dead.created_at, moment::relative(dead.created_at, now))?;
    let given_up = format!("{} ({}), {}", dead.dlq_at, moment::relative(dead.dlq_at, now), failures(dead));
    writeln!(out, "  given up   {}", screen.paint(Style::Bad, given_up))?;
    if let Some(subscription) = &dead.subscription {
        writeln!(out, "  by         {subscription}")?;
    }
    events::facts(&dead.metadata, out)?;
    writeln!(out, "\n{}\n{}", screen.paint(Style::Quiet, "payload"), payload::pretty(dead.payload.get()))?;
    if dead.attempts.is_empty() && !dead.errors.is_empty() {
        writeln!(out, "\n{}", screen.paint(Style::Quiet, "errors"))?;
        for error in &dead.errors {
            writeln!(out, "  {}", label::one_line(error))?;
        }
    }
    events::attempts(&dead.attempts, out, screen)?;
    Ok(())
}
