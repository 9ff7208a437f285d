//! `redrive scheduler review retry` and `discard`.

use std::io::Write;

use clap::Args;
use redrive::EventId;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::place::Place;

/// Send a message to its queue once more; if it fails again, it comes back to review
#[derive(Debug, Args)]
pub(super) struct Retry {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
    /// Another queue than the one it came from; needed where that is not known
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Retry {
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let body = json!({ "queue": self.queue });
        let decided: Value = place.post(&format!("/v1/review/{}/retry", self.id), &body).await?;
        if self.json {
            return Ok(writeln!(out, "{decided}")?);
        }
        Ok(writeln!(out, "{} goes back to {}.", self.id, self.queue.as_deref().unwrap_or("its queue"))?)
    }
}

/// Give a message up for good; it stays known with who decided so and why
#[derive(Debug, Args)]
pub(super) struct Discard {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
    /// Why
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Discard {
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let body = json!({ "why": self.why });
        let decided: Value = place.post(&format!("/v1/review/{}/discard", self.id), &body).await?;
        if self.json {
            return Ok(writeln!(out, "{decided}")?);
        }
        Ok(writeln!(out, "{} is given up.", self.id)?)
    }
}
