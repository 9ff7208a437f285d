//! `redrive scheduler review …`: lists, shows, republishes and discards messages in review, in a database or through a running service.

mod list;
mod show;

use std::io::Write;

use clap::{Args, Subcommand};
use redrive::EventId;
use redrive_api::review::{DiscardMessage, ReleaseMessage};

use crate::api::{EndpointSecrets, IfMissing, PageArgs, ServerArgs};
use crate::database::Database;
use crate::failure::Failure;
use crate::screen::Screen;

/// List, show, republish or discard messages in manual review
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive scheduler review list
  redrive scheduler review show 5038d5d2-2cf9-8961-b98b-e4785534a1ee
  redrive scheduler review retry 5038d5d2-2cf9-8961-b98b-e4785534a1ee
  redrive scheduler review discard 5038d5d2-2cf9-8961-b98b-e4785534a1ee --why 'the customer has cancelled'
  redrive scheduler review list --server http://127.0.0.1:8086

On a database, the decision is stored, and the scheduler that runs there acts on it within a second; if none runs, the next one does.")]
pub(crate) struct ReviewCommand {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the messages in review, newest first
    List(PageArgs),
    /// Show one failed message: payload, history and decision
    Show(Task),
    /// Republish a message once more; a further failure returns it to review
    Retry {
        #[command(flatten)]
        task: Task,
        /// Republish to this queue instead of the original one; required if that is unknown
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
    },
    /// Discard a message; the record keeps the reason and the caller
    Discard {
        #[command(flatten)]
        task: Task,
        /// Reason, kept on record
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
    },
}

/// Names a message in review.
#[derive(Debug, Args)]
struct Task {
    /// The task, as `list` shows it
    #[arg(value_name = "TASK")]
    id: EventId,
}

impl ReviewCommand {
    pub(super) fn run(self, db: &Database, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        self.server.run(db, EndpointSecrets::Closed, IfMissing::Fail, out, screen, async |api| {
            match self.command {
                Command::List(page) => list::list(page, api).await,
                Command::Show(Task { id }) => show::show(id, api).await,
                Command::Retry { task: Task { id }, queue } => {
                    let decided =
                        api.review().retry(*id.as_uuid(), &ReleaseMessage { queue: queue.clone() }).await?;
                    let queue = queue.as_deref().unwrap_or("its queue");
                    api.print_response(decided, |api, _| {
                        Ok(writeln!(api.out, "{id} goes to {queue} again.")?)
                    })
                }
                Command::Discard { task: Task { id }, why } => {
                    let decided = api.review().discard(*id.as_uuid(), &DiscardMessage { why }).await?;
                    api.print_response(decided, |api, _| Ok(writeln!(api.out, "{id} is discarded.")?))
                }
            }
        })
    }
}

/// Drops the words that say that a message is in review.
fn reason(why: &str) -> &str {
    why.strip_prefix("in review, ").unwrap_or(why)
}
