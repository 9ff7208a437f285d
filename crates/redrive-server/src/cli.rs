//! The command line: which commands there are. What each does is in the module of its name.

use std::io::Write;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::audit::AuditCommand;
use crate::failure::Failure;
use crate::policy::PolicyCommand;
use crate::screen::Screen;

const EXAMPLES: &str = "\
Examples:
  redrive policy explain --preset webhook         when each attempt comes
  redrive policy simulate --events 5000           what a policy does to a destination that was down
  redrive audit verify audit.jsonl                whether recorded decisions are what the rules give
  redrive completions bash > /etc/bash_completion.d/redrive

Exit codes: 0 done, 1 failed, 2 wrong arguments. Commands that print data take --json.";

/// An event that was published is handled, or it stands in the dead-letter queue
#[derive(Debug, Parser)]
#[command(
    name = "redrive",
    version,
    after_help = EXAMPLES,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what a retry policy means, before it runs
    #[command(
        subcommand,
        after_help = "\
Examples:
  redrive policy explain --preset webhook
  redrive policy simulate --preset webhook --outage 10s"
    )]
    Policy(PolicyCommand),
    /// Check what was decided
    #[command(subcommand, after_help = "Example:\n  redrive audit verify audit.jsonl")]
    Audit(AuditCommand),
    /// Print a completion script for your shell
    #[command(after_help = "\
Examples:
  redrive completions bash > /etc/bash_completion.d/redrive
  redrive completions zsh > ~/.zfunc/_redrive          (with ~/.zfunc in $fpath)
  redrive completions fish > ~/.config/fish/completions/redrive.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Cli {
    /// Runs the command. Everything for standard output goes through `out`.
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self.command {
            Command::Policy(command) => command.run(out, screen),
            Command::Audit(command) => command.run(out, screen),
            Command::Completions { shell } => completions(shell, out),
        }
    }
}

fn completions(shell: Shell, out: &mut impl Write) -> Result<(), Failure> {
    // The generator panics when it cannot write, so it writes to memory, which never fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "redrive", &mut script);
    Ok(out.write_all(&script)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
