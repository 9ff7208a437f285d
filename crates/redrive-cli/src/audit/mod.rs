//! `redrive audit …`: lists, counts and verifies recorded attempts and retry decisions.

mod line;
mod lines;
mod list;
pub(crate) mod source;
mod stats;
mod verify;

use std::io::Write;

use clap::Subcommand;

use self::list::List;
use self::stats::Stats;
use self::verify::Verify;
use crate::failure::Failure;
use crate::screen::Screen;

/// The commands below `redrive audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    List(List),
    Stats(Stats),
    Verify(Verify),
}

impl AuditCommand {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self {
            AuditCommand::List(list) => list.run(out, screen),
            AuditCommand::Stats(stats) => stats.run(out, screen),
            AuditCommand::Verify(verify) => verify.run(out, screen),
        }
    }
}
