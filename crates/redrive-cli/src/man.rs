//! `redrive man`: writes manual pages from the definitions of the commands.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::failure::Failure;

/// Print the manual page, or write one page for every command
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive man | man -l -
  redrive man --dir /usr/local/share/man/man1           then: man redrive-dlq-retry")]
pub(crate) struct ManPages {
    /// Write redrive.1, redrive-dlq.1, redrive-dlq-retry.1 and so on into this folder, which is created if missing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl ManPages {
    pub(crate) fn run(&self, command: Command, out: &mut impl Write) -> Result<(), Failure> {
        let Some(dir) = &self.dir else { return Ok(Man::new(command).render(out)?) };
        std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir)).map_err(
            |error| Failure::Failed(format!("cannot write into {}: {error}; check the path", dir.display())),
        )?;
        Ok(writeln!(out, "manual pages written to {}", dir.display())?)
    }
}
