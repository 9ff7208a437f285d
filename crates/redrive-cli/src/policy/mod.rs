//! `redrive policy …`: explains, simulates and recommends retry policies.

mod advice;
mod advise;
mod bars;
mod conclusion;
mod description;
mod explain;
mod explain_picture;
mod history_replay;
mod outages;
mod policy_args;
mod recommendation;
mod schedule;
mod simulate;
mod simulate_picture;
mod simulate_plot;
mod simulation;

use std::io::{self, Write};
use std::path::Path;

use clap::Subcommand;

use self::advise::Advise;
use self::explain::Explain;
use self::simulate::Simulate;
use crate::failure::Failure;
use crate::screen::Screen;

/// The commands below `redrive policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    Explain(Explain),
    Simulate(Simulate),
    Advise(Advise),
}

impl PolicyCommand {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self {
            PolicyCommand::Explain(explain) => explain.run(out, screen),
            PolicyCommand::Simulate(simulate) => simulate.run(out, screen),
            PolicyCommand::Advise(advise) => advise.run(out, screen),
        }
    }
}

/// Writes a picture; reports it on standard error, so that standard output stays data.
fn write_picture(path: &Path, svg: &str) -> Result<(), Failure> {
    std::fs::write(path, svg).map_err(|error| {
        Failure::Failed(format!(
            "cannot write the picture to {}: {error}; give --svg a file in a writable directory",
            path.display()
        ))
    })?;
    let _ = writeln!(io::stderr().lock(), "wrote {}", path.display());
    Ok(())
}
