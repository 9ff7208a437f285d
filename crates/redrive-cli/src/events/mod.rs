//! `redrive events …`: looks events up.

mod display;
mod list;
mod show;
mod tail;

use std::io::Write;

use clap::{Args, Subcommand};

use self::list::List;
use self::show::Show;
use self::tail::Tail;
use crate::api::{IfMissing, Keys, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) use self::show::{attempts, metadata};

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
        self.server.run(&self.database.db, Keys::None, IfMissing::Fail, async |api| match self.command {
            EventsCommand::List(list) => list.run(api, out, screen).await,
            EventsCommand::Show(show) => show.run(api, out, screen).await,
            EventsCommand::Tail(tail) => tail.run(api, out, screen).await,
        })
    }
}
