//! `redrive events …`: what has become of each event.

mod list;
mod show;
mod tail;

use std::io::Write;

use clap::{Args, Subcommand};

use self::list::List;
use self::show::Show;
use self::tail::Tail;
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) use self::show::{attempts, facts};

#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(subcommand)]
    command: EventsCommand,
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
            EventsCommand::List(list) => list.run(&self.database.db, out, screen),
            EventsCommand::Show(show) => show.run(&self.database.db, out, screen),
            EventsCommand::Tail(tail) => tail.run(&self.database.db, out, screen),
        }
    }
}
