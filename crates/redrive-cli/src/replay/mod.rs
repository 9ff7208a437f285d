//! `redrive replay …`: sends events to an endpoint again.

mod jobs;
mod send;

use std::io::Write;

use clap::{Args, Subcommand};

use self::send::{ReplayEndpoint, ReplayEvent};
use crate::api::{EndpointSecrets, IfMissing, PageArgs, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;
use redrive_server::serve::secret_key::SecretKeyArgs;
use redrive_server::serve::sending::SendingArgs;
use redrive_webhook::ReplayId;

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
    /// List replays, oldest first
    List(PageArgs),
    /// Show the progress of a replay
    Show {
        /// The replay
        id: ReplayId,
    },
    /// Cancel a replay; sent events stay sent
    Cancel {
        /// The replay
        id: ReplayId,
    },
}

impl Replay {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let sending = SendingArgs::default(); // only a server sends
        let (db, secrets) = (&self.database.db, EndpointSecrets::Open(&self.secret_key, &sending));
        self.server.run(db, secrets, IfMissing::Fail, out, screen, async |api| match self.command {
            ReplayCommand::Event(event) => event.run(api).await,
            ReplayCommand::Endpoint(endpoint) => endpoint.run(api).await,
            ReplayCommand::List(page) => jobs::list(page, api).await,
            ReplayCommand::Show { id } => {
                let job = api.replays().get(&id.to_string()).await?;
                api.print_response(job, jobs::print)
            }
            ReplayCommand::Cancel { id } => {
                let job = api.replays().cancel(&id.to_string()).await?;
                api.print_response(job, jobs::print)
            }
        })
    }
}
