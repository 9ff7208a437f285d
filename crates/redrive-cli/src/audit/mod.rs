//! `redrive audit …`: verifies recorded retry decisions.

mod line;
mod lines;
mod verify;

use std::io::Write;

use clap::Subcommand;

use self::verify::Verify;
use crate::failure::Failure;
use crate::screen::Screen;

/// The commands below `redrive audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    Verify(Verify),
}

impl AuditCommand {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self {
            AuditCommand::Verify(verify) => verify.run(out, screen),
        }
    }
}
