//! `redrive events …`: looks events up.

mod list;
mod printed;
mod show;
mod tail;

use std::io::Write;

use clap::{Args, Subcommand};
use redrive::EventId;

use self::list::List;
use self::tail::Tail;
use crate::api::{EndpointSecrets, IfMissing, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) use self::show::{attempts, content};

#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(subcommand)]
    command: EventsCommand,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    List(List),
    /// Show one event: payload, errors, attempts, deliveries
    Show {
        /// The event
        id: EventId,
    },
    Tail(Tail),
}

impl Events {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let db = &self.database.db;
        self.server.run(db, EndpointSecrets::Closed, IfMissing::Fail, out, screen, async |api| {
            match self.command {
                EventsCommand::List(list) => list.run(api).await,
                EventsCommand::Show { id } => show::show(id, api).await,
                EventsCommand::Tail(tail) => tail.run(api).await,
            }
        })
    }
}
