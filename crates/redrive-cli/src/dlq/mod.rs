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

use self::export::Export;
use self::groups::Groups;
use self::list::List;
use self::purge::Purge;
use self::retry::Retry;
use self::show::Show;
use crate::api::{IfMissing, Keys, ServerArgs};
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
    Show(Show),
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
        self.server.run(&self.database.db, Keys::None, IfMissing::Fail, async |api| match self.command {
            DlqCommand::List(list) => list.run(api, out, screen).await,
            DlqCommand::Show(show) => show.run(api, out, screen).await,
            DlqCommand::Groups(groups) => groups.run(api, out, screen).await,
            DlqCommand::Retry(retry) => retry.run(api, out, screen).await,
            DlqCommand::Purge(purge) => purge.run(api, out).await,
            DlqCommand::Export(export) => export.run(api, out).await,
        })
    }
}
