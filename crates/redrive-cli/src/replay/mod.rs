//! `redrive replay …`: sends events to an endpoint again.

mod jobs;
mod send;

use std::io::Write;

use clap::{Args, Subcommand};

use self::jobs::{Cancel, List, Show};
use self::send::{ReplayEndpoint, ReplayEvent};
use crate::api::{IfMissing, Keys, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;
use redrive_server::serve::secret_key::SecretKeyArgs;
use redrive_server::serve::sending::SendingArgs;

/// Send missed events to an endpoint again
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
        let sending = SendingArgs::default(); // only a server sends
        let keys = Keys::Endpoints(&self.secret_key, &sending);
        self.server.run(&self.database.db, keys, IfMissing::Fail, async |api| match self.command {
            ReplayCommand::Event(event) => event.run(api, out).await,
            ReplayCommand::Endpoint(endpoint) => endpoint.run(api, out).await,
            ReplayCommand::List(list) => list.run(api, out, screen).await,
            ReplayCommand::Show(show) => show.run(api, out).await,
            ReplayCommand::Cancel(cancel) => cancel.run(api, out).await,
        })
    }
}
