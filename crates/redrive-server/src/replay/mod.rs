//! `redrive replay …`: an event to one endpoint again, or everything that an endpoint has given up.

mod jobs;
mod send;

use std::io::Write;

use clap::{Args, Subcommand};

use self::jobs::{Cancel, List, Show};
use self::send::{ReplayEndpoint, ReplayEvent};
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::place::{IfMissing, Keys, Place, ServerArgs};
use crate::screen::Screen;
use crate::serve::secret_key::SecretKeyArgs;
use crate::serve::sending::SendingArgs;

/// Send what an endpoint has missed to it again
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive replay endpoint ep_0190b3c47d2e7a118f006d5e4c3b2a19 --since 2h --dry-run
  redrive replay endpoint ep_0190b3c47d2e7a118f006d5e4c3b2a19 --since 2026-01-31T12:00:00Z --per-second 20
  redrive replay event 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19 --endpoint ep_0190b3c47d2e7a118f006d5e4c3b2a19
  redrive replay list

On a database, the replay is stored, and the server that runs there works on it; if none runs, the next one does.")]
pub(crate) struct Replay {
    #[command(subcommand)]
    command: ReplayCommand,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    secret_key: SecretKeyArgs,
}

#[derive(Debug, Subcommand)]
enum ReplayCommand {
    Event(ReplayEvent),
    Endpoint(ReplayEndpoint),
    List(List),
    Show(Show),
    Cancel(Cancel),
}

impl Replay {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        block_on(async {
            let sending = SendingArgs::default(); // nothing is sent from here
            let keys = Keys::Endpoints(&self.secret_key, &sending);
            let place = Place::open(&self.server, &self.database.db, keys, IfMissing::Fail).await?;
            let done = match self.command {
                ReplayCommand::Event(event) => event.run(&place, out).await,
                ReplayCommand::Endpoint(endpoint) => endpoint.run(&place, out).await,
                ReplayCommand::List(list) => list.run(&place, out, screen).await,
                ReplayCommand::Show(show) => show.run(&place, out).await,
                ReplayCommand::Cancel(cancel) => cancel.run(&place, out).await,
            };
            place.close().await?;
            done
        })
    }
}
