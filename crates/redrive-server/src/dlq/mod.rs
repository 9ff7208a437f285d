//! `redrive dlq …`: what was given up, why, and the way back.

mod export;
mod filter_args;
mod groups;
mod list;
mod pages;
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
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;

#[derive(Debug, Args)]
pub(crate) struct Dlq {
    #[command(subcommand)]
    command: DlqCommand,
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
        let db = &self.database.db;
        match self.command {
            DlqCommand::List(list) => list.run(db, out, screen),
            DlqCommand::Show(show) => show.run(db, out, screen),
            DlqCommand::Groups(groups) => groups.run(db, out, screen),
            DlqCommand::Retry(retry) => retry.run(db, out, screen),
            DlqCommand::Purge(purge) => purge.run(db, out),
            DlqCommand::Export(export) => export.run(db, out),
        }
    }
}
