//! `redrive endpoints …`: manages the receivers of webhooks.

mod add;
mod attempts;
mod change;
mod display;
mod list;
mod secret;
mod settings;
mod test;

use std::io::Write;

use clap::{Args, Subcommand};

use self::add::Add;
use self::attempts::Attempts;
use self::change::{Remove, Switch, Update};
use self::list::{List, Show};
use self::secret::RotateSecret;
use self::test::Test;
use crate::api::{Api, IfMissing, Keys, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;
use redrive_server::serve::secret_key::SecretKeyArgs;
use redrive_server::serve::sending::SendingArgs;

/// Manage the receivers of webhooks: create, test and change endpoints
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints add https://example.com/hooks --pattern 'order.*' --pattern invoice.paid
  redrive endpoints list
  redrive endpoints test ep_0190b3c47d2e7a118f006d5e4c3b2a19
  redrive endpoints rotate-secret ep_0190b3c47d2e7a118f006d5e4c3b2a19 --overlap 48h
  redrive endpoints list --server https://events.example.com --token rdt_…

On a database, a server that runs there sees a change within a second. --json prints what the HTTP API answers.")]
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
    List(List),
    Show(Show),
    Update(Update),
    /// Enable an endpoint; missed events are replayed on demand
    Enable(Switch),
    /// Disable an endpoint; events that it misses are dead-lettered
    Disable(Switch),
    Remove(Remove),
    RotateSecret(RotateSecret),
    Test(Test),
    Attempts(Attempts),
}

impl Endpoints {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let if_missing = match self.command {
            EndpointsCommand::Add(_) => IfMissing::Make,
            _ => IfMissing::Fail,
        };
        let keys = Keys::Endpoints(&self.secret_key, &self.sending);
        self.server
            .run(&self.database.db, keys, if_missing, async |api| self.command.run(api, out, screen).await)
    }
}

impl EndpointsCommand {
    async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self {
            EndpointsCommand::Add(add) => add.run(api, out, screen).await,
            EndpointsCommand::List(list) => list.run(api, out, screen).await,
            EndpointsCommand::Show(show) => show.run(api, out, screen).await,
            EndpointsCommand::Update(update) => update.run(api, out, screen).await,
            EndpointsCommand::Enable(switch) => switch.run(true, api, out).await,
            EndpointsCommand::Disable(switch) => switch.run(false, api, out).await,
            EndpointsCommand::Remove(remove) => remove.run(api, out).await,
            EndpointsCommand::RotateSecret(rotate) => rotate.run(api, out).await,
            EndpointsCommand::Test(test) => test.run(api, out, screen).await,
            EndpointsCommand::Attempts(attempts) => attempts.run(api, out, screen).await,
        }
    }
}
