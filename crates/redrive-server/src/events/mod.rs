//! `redrive events …`: what has become of each event.

mod list;
mod show;
mod shown;
mod tail;

use std::io::Write;

use clap::{Args, Subcommand};

use self::list::List;
use self::show::Show;
use self::tail::Tail;
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::place::ServerArgs;
use crate::screen::Screen;

pub(crate) use self::show::{attempts, facts};

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
    Show(Show),
    Tail(Tail),
}

impl Events {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self.command {
            EventsCommand::Tail(tail) => tail.run(&self.server, &self.database.db, out, screen),
            EventsCommand::List(list) => block_on(async {
                list.run(&Ledger::open(&self.server, &self.database.db).await?, out, screen).await
            }),
            EventsCommand::Show(show) => block_on(async {
                show.run(&Ledger::open(&self.server, &self.database.db).await?, out, screen).await
            }),
        }
    }
}
