//! `redrive dlq …`: looks at dead letters, redrives and deletes them.

mod export;
mod filter_args;
mod groups;
mod list;
mod purge;
mod rate;
mod retry;
mod show;

use std::io::Write;

use clap::{Args, Subcommand};
use redrive::EventId;

use self::export::Export;
use self::groups::Groups;
use self::list::List;
use self::purge::Purge;
use self::retry::Retry;
use crate::api::{EndpointSecrets, IfMissing, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;

#[derive(Debug, Args)]
pub(crate) struct Dlq {
    #[command(subcommand)]
    command: DlqCommand,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    List(List),
    /// Show the dead letters of one event: payload, reason, every error and attempt
    Show {
        /// The event
        id: EventId,
    },
    Groups(Groups),
    Retry(Retry),
    Purge(Purge),
    Export(Export),
}

impl Dlq {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if let DlqCommand::Retry(retry) = &self.command {
            retry.check()?;
        }
        let db = &self.database.db;
        self.server.run(db, EndpointSecrets::Closed, IfMissing::Fail, out, screen, async |api| {
            match self.command {
                DlqCommand::List(list) => list.run(api).await,
                DlqCommand::Show { id } => show::show(id, api).await,
                DlqCommand::Groups(groups) => groups.run(api).await,
                DlqCommand::Retry(retry) => retry.run(api).await,
                DlqCommand::Purge(purge) => purge.run(api).await,
                DlqCommand::Export(export) => export.run(api).await,
            }
        })
    }
}
