//! `redrive scheduler review …`: what waits for a person, in a database or by a running service.

mod decide;
mod list;
mod show;

use std::io::Write;

use clap::{Args, Subcommand};

use self::decide::{Discard, Retry};
use self::list::List;
use self::show::Show;
use crate::database::{Database, block_on};
use crate::failure::Failure;
use crate::place::{IfMissing, Keys, Place, ServerArgs};
use crate::screen::Screen;

/// Look at the messages that wait for a person, send them back, or give them up
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive scheduler review list
  redrive scheduler review show 5038d5d2-2cf9-8961-b98b-e4785534a1ee
  redrive scheduler review retry 5038d5d2-2cf9-8961-b98b-e4785534a1ee
  redrive scheduler review discard 5038d5d2-2cf9-8961-b98b-e4785534a1ee --why 'the customer has cancelled'
  redrive scheduler review list --server http://127.0.0.1:8086

On a database, what was decided is stored, and the scheduler that runs there does it within a second; if none runs, the next one does.")]
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
        block_on(async {
            let place = Place::open(&self.server, db, Keys::None, IfMissing::Fail).await?;
            let done = match self.command {
                Command::List(list) => list.run(&place, out, screen).await,
                Command::Show(show) => show.run(&place, out, screen).await,
                Command::Retry(retry) => retry.run(&place, out).await,
                Command::Discard(discard) => discard.run(&place, out).await,
            };
            place.close().await?;
            done
        })
    }
}

/// Why something is in review, without saying that it is.
fn reason(why: &str) -> &str {
    why.strip_prefix("in review, ").unwrap_or(why)
}
