//! `redrive endpoints …`: manages the receivers of webhooks.

mod add;
mod attempts;
mod change;
mod secret;
mod settings;
mod show;
mod test;

use std::io::Write;

use clap::{Args, Subcommand};

use self::add::Add;
use self::attempts::Attempts;
use self::change::Update;
use self::secret::RotateSecret;
use crate::api::{EndpointSecrets, IfMissing, PageArgs, ServerArgs, Session};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;
use redrive_server::serve::secret_key::SecretKeyArgs;
use redrive_server::serve::sending::SendingArgs;
use redrive_webhook::EndpointId;

/// Manage the receivers of webhooks: create, test and change endpoints
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints add https://example.com/hooks --pattern 'order.*' --pattern invoice.paid
  redrive endpoints list
  redrive endpoints test ep_0190b3c47d2e7a118f006d5e4c3b2a19
  redrive endpoints rotate-secret ep_0190b3c47d2e7a118f006d5e4c3b2a19 --overlap 48h
  redrive endpoints list --server https://events.example.com --token rdt_…

On a database, a server that runs there sees a change within a second. --json prints the response of the HTTP API.")]
pub(crate) struct Endpoints {
    #[command(subcommand)]
    command: EndpointsCommand,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    secret_key: SecretKeyArgs,
    #[command(flatten)]
    sending: SendingArgs,
}

#[derive(Debug, Subcommand)]
enum EndpointsCommand {
    Add(Add),
    /// List endpoints, oldest first; never their secrets
    List(PageArgs),
    /// Show one endpoint; never its secrets
    Show(Id),
    Update(Update),
    /// Enable an endpoint; missed events are replayed on demand
    Enable(Id),
    /// Disable an endpoint; events that it misses are dead-lettered
    Disable(Id),
    /// Remove an endpoint; its open deliveries are dead-lettered
    Remove(Id),
    RotateSecret(RotateSecret),
    /// Send a test message (type redrive.test) to an endpoint and print the response
    #[command(after_help = "\
Exit code 0 if the endpoint has answered 2xx, 1 if not. On a database, this command sends it; with --server, the server.")]
    Test(Id),
    Attempts(Attempts),
}

/// Names an endpoint.
#[derive(Debug, Args)]
struct Id {
    /// The endpoint
    id: EndpointId,
}

impl Endpoints {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let if_missing = match self.command {
            EndpointsCommand::Add(_) => IfMissing::Create,
            _ => IfMissing::Fail,
        };
        let (db, secrets) = (&self.database.db, EndpointSecrets::Open(&self.secret_key, &self.sending));
        self.server.run(db, secrets, if_missing, out, screen, async |api| self.command.run(api).await)
    }
}

impl EndpointsCommand {
    async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        match self {
            EndpointsCommand::Add(add) => add.run(api).await,
            EndpointsCommand::List(page) => show::list(page, api).await,
            EndpointsCommand::Show(Id { id }) => show::show(&id, api).await,
            EndpointsCommand::Update(update) => update.run(api).await,
            EndpointsCommand::Enable(Id { id }) => change::switch(&id, true, api).await,
            EndpointsCommand::Disable(Id { id }) => change::switch(&id, false, api).await,
            EndpointsCommand::Remove(Id { id }) => change::remove(&id, api).await,
            EndpointsCommand::RotateSecret(rotate) => rotate.run(api).await,
            EndpointsCommand::Test(Id { id }) => test::test(&id, api).await,
            EndpointsCommand::Attempts(attempts) => attempts.run(api).await,
        }
    }
}
