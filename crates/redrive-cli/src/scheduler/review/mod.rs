//! `redrive scheduler review …`: lists, groups, shows, republishes and discards messages in review, in a database or through a running service.

mod decide;
mod filter;
mod groups;
mod list;
mod show;

use std::io::Write;

use clap::{Args, Subcommand};
use redrive::EventId;

use self::decide::{Selection, Verb};
use self::filter::FilterArgs;
use crate::api::{EndpointSecrets, IfMissing, PageArgs, ServerArgs};
use crate::database::Database;
use crate::failure::Failure;
use crate::screen::Screen;

/// List, group, show, republish or discard messages in manual review
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive scheduler review list
  redrive scheduler review show 5038d5d2-2cf9-8961-b98b-e4785534a1ee
  redrive scheduler review retry 5038d5d2-2cf9-8961-b98b-e4785534a1ee
  redrive scheduler review discard 5038d5d2-2cf9-8961-b98b-e4785534a1ee --why 'the customer has cancelled'
  redrive scheduler review groups --from orders
  redrive scheduler review retry --all --from orders --error timeout --dry-run
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
    List {
        #[command(flatten)]
        page: PageArgs,
        #[command(flatten)]
        filter: FilterArgs,
    },
    /// Group the messages in review by queue and error, largest group first
    Groups(FilterArgs),
    /// Show one failed message: payload, history and decision
    Show(Task),
    /// Republish messages once more; a further failure returns them to review
    Retry {
        #[command(flatten)]
        selection: Selection,
        /// Republish to this queue instead of the original one; required if that is unknown
        #[arg(long, value_name = "QUEUE", help_heading = None::<&'static str>)]
        queue: Option<String>,
    },
    /// Discard messages; the record keeps the reason and the caller
    Discard {
        #[command(flatten)]
        selection: Selection,
        /// Reason, kept on record
        #[arg(long, value_name = "TEXT", help_heading = None::<&'static str>)]
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
        if let Command::Retry { selection, .. } | Command::Discard { selection, .. } = &self.command {
            selection.check()?;
        }
        self.server.run(db, EndpointSecrets::Closed, IfMissing::Fail, out, screen, async |api| {
            match self.command {
                Command::List { page, filter } => list::list(page, &filter, api).await,
                Command::Groups(filter) => groups::groups(&filter, api).await,
                Command::Show(Task { id }) => show::show(id, api).await,
                Command::Retry { selection, queue } => selection.decide(&Verb::Retry { queue }, api).await,
                Command::Discard { selection, why } => selection.decide(&Verb::Discard { why }, api).await,
            }
        })
    }
}

/// The retries so far, and their limit.
fn retries(count: u32, max: u32) -> String {
    format!("{count} {} (limit {max})", if count == 1 { "retry" } else { "retries" })
}

/// Drops the words that say that a message is in review.
fn reason(why: &str) -> &str {
    why.strip_prefix("in review, ").unwrap_or(why)
}
