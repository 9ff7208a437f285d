//! `redrive endpoints …`: where webhooks go. Each command is one request of the HTTP API, to a server or to a database.

mod add;
mod attempts;
mod change;
mod list;
mod secret;
mod settings;
mod shown;
mod test;

use std::io::Write;

use clap::{Args, Subcommand};

use self::add::Add;
use self::attempts::Attempts;
use self::change::{Remove, Switch, Update};
use self::list::{List, Show};
use self::secret::RotateSecret;
use self::test::Test;
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::place::{IfMissing, Keys, Place, ServerArgs};
use crate::screen::Screen;
use crate::serve::secret_key::SecretKeyArgs;
use crate::serve::sending::SendingArgs;

/// Say where webhooks go: make endpoints, try them, change them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints add https://example.com/hooks --pattern 'order.*' --pattern invoice.paid
  redrive endpoints list
  redrive endpoints test ep_0190b3c47d2e7a118f006d5e4c3b2a19
  redrive endpoints rotate-secret ep_0190b3c47d2e7a118f006d5e4c3b2a19 --overlap 48h
  redrive endpoints list --server https://events.example.com --token rdt_…

On a database, a server that runs there hears of it within a second. --json prints what the HTTP API answers.")]
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
    /// Send to an endpoint again; what it has missed is replayed on demand
    Enable(Switch),
    /// Send nothing to an endpoint; what it misses goes to the dead-letter queue
    Disable(Switch),
    Remove(Remove),
    RotateSecret(RotateSecret),
    Test(Test),
    Attempts(Attempts),
}

impl Endpoints {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        block_on(async {
            let if_missing = match self.command {
                EndpointsCommand::Add(_) => IfMissing::Make,
                _ => IfMissing::Fail,
            };
            let keys = Keys::Endpoints(&self.secret_key, &self.sending);
            let place = Place::open(&self.server, &self.database.db, keys, if_missing).await?;
            let done = self.command.run(&place, out, screen).await;
            place.close().await?;
            done
        })
    }
}

impl EndpointsCommand {
    async fn run(self, place: &Place, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self {
            EndpointsCommand::Add(add) => add.run(place, out, screen).await,
            EndpointsCommand::List(list) => list.run(place, out, screen).await,
            EndpointsCommand::Show(show) => show.run(place, out, screen).await,
            EndpointsCommand::Update(update) => update.run(place, out, screen).await,
            EndpointsCommand::Enable(switch) => switch.run(true, place, out).await,
            EndpointsCommand::Disable(switch) => switch.run(false, place, out).await,
            EndpointsCommand::Remove(remove) => remove.run(place, out).await,
            EndpointsCommand::RotateSecret(rotate) => rotate.run(place, out).await,
            EndpointsCommand::Test(test) => test.run(place, out, screen).await,
            EndpointsCommand::Attempts(attempts) => attempts.run(place, out, screen).await,
        }
    }
}

/// The path of one endpoint.
fn path(id: &redrive_webhook::EndpointId) -> String {
    format!("/v1/endpoints/{id}")
}
