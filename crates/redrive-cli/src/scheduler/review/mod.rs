//! `redrive scheduler review …`: lists, shows, republishes and discards messages in review, in a database or through a running service.

mod decide;
mod list;
mod show;

use std::io::Write;

use clap::{Args, Subcommand};

use self::decide::{Discard, Retry};
use self::list::List;
use self::show::Show;
use crate::api::{IfMissing, Keys, ServerArgs};
use crate::database::Database;
use crate::failure::Failure;
use crate::screen::Screen;

/// Work on the review queue: look at messages, republish or discard them
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
    List(List),
    Show(Show),
    Retry(Retry),
    Discard(Discard),
}

impl ReviewCommand {
    pub(super) fn run(self, db: &Database, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        self.server.run(db, Keys::None, IfMissing::Fail, async |api| match self.command {
            Command::List(list) => list.run(api, out, screen).await,
            Command::Show(show) => show.run(api, out, screen).await,
            Command::Retry(retry) => retry.run(api, out).await,
            Command::Discard(discard) => discard.run(api, out).await,
        })
    }
}

/// Drops the words that say that a message is in review.
fn reason(why: &str) -> &str {
    why.strip_prefix("in review, ").unwrap_or(why)
}
