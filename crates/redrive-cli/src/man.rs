//! `redrive man`: writes manual pages from the definitions of the commands.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::failure::Failure;
use crate::format;

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
    pub(crate) fn run(&self, mut command: Command, out: &mut impl Write) -> Result<(), Failure> {
        command.build();
        let Some(dir) = &self.dir else {
            return Ok(out.write_all(&page(&command, "redrive")?)?);
        };
        let failed = |path: &Path, error: io::Error| {
            Failure::Failed(format!("{} cannot be written: {error}; check the path", path.display()))
        };
        std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
        let mut written = 0;
        for (name, command) in pages(&command, "redrive") {
            let path = dir.join(format!("{name}.1"));
            std::fs::write(&path, page(command, &name)?).map_err(|error| failed(&path, error))?;
            written += 1;
        }
        Ok(writeln!(out, "{} written to {}", format::counted(written, "page"), dir.display())?)
    }
}

/// The command and every visible command below it, each with the name of its page.
fn pages<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Command)> {
    let mut all = vec![(name.to_owned(), command)];
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        all.extend(pages(below, &format!("{name}-{}", below.get_name())));
    }
    all
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone().name(name.to_owned()).display_name(name.to_owned())).render(&mut page)?;
    Ok(page)
}
