//! `redrive scheduler review retry` and `discard`.

use std::io::Write;

use clap::Args;
use redrive::EventId;
use redrive_api::review::{DiscardMessage, ReleaseMessage};

use crate::api::{Api, write_json};
use crate::failure::Failure;

/// Republish a message once more; a further failure returns it to review
#[derive(Debug, Args)]
pub(super) struct Retry {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
    /// Another queue than the original one; required where that is unknown
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Retry {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write) -> Result<(), Failure> {
        let how = ReleaseMessage { queue: self.queue };
        let decided = api.review().retry(*self.id.as_uuid(), &how).await?;
        if self.json {
            return write_json(out, &decided);
        }
        Ok(writeln!(out, "{} goes to {} again.", self.id, how.queue.as_deref().unwrap_or("its queue"))?)
    }
}

/// Discard a message; the record keeps the reason and the caller
#[derive(Debug, Args)]
pub(super) struct Discard {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
    /// Reason
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Discard {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write) -> Result<(), Failure> {
        let decided = api.review().discard(*self.id.as_uuid(), &DiscardMessage { why: self.why }).await?;
        if self.json {
            return write_json(out, &decided);
        }
        Ok(writeln!(out, "{} is discarded.", self.id)?)
    }
}
