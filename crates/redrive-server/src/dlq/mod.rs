//! `redrive dlq …`: what was given up, why, and the way back.

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
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::place::ServerArgs;
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
        block_on(async {
            let ledger = Ledger::open(&self.server, &self.database.db).await?;
            match self.command {
                DlqCommand::List(list) => list.run(&ledger, out, screen).await,
                DlqCommand::Show(show) => show.run(&ledger, out, screen).await,
                DlqCommand::Groups(groups) => groups.run(&ledger, out, screen).await,
                DlqCommand::Retry(retry) => retry.run(&ledger, out, screen).await,
                DlqCommand::Purge(purge) => purge.run(&ledger, out).await,
                DlqCommand::Export(export) => export.run(&ledger, out).await,
            }
        })
    }
}
