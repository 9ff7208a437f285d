//! The command line: its commands. Each is in the module of its name.

use std::io::Write;
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::audit::AuditCommand;
use crate::backup::Backup;
use crate::bench::Bench;
use crate::config::Config;
use crate::demo::Demo;
use crate::dlq::Dlq;
use crate::doctor::Doctor;
use crate::endpoints::Endpoints;
use crate::events::Events;
use crate::failure::Failure;
use crate::man::ManPages;
use crate::migrate::Migrate;
use crate::policy::PolicyCommand;
use crate::publish::Publish;
use crate::replay::Replay;
use crate::scheduler::Scheduler;
use crate::screen::Screen;
use crate::stats::Stats;
use crate::tokens::Tokens;
use redrive_server::serve::Serve;

const EXAMPLES: &str = "\
Examples:
  redrive demo                                    run a shop with failing handlers; check that no event is lost
  redrive demo --crash                            kill the shop's process with SIGKILL several times
  redrive serve                                   serve the HTTP API on 127.0.0.1:8080
  redrive scheduler                               retry failed RabbitMQ or NATS messages after a backoff
  redrive endpoints add https://example.com/hooks --pattern 'order.*'
  redrive publish order.created '{\"order\": 7}'    store an event for the bus that dispatches from this file
  redrive events list --status processing         list events that run or wait for a retry
  redrive dlq groups                              group dead letters by error
  redrive dlq retry --all --type order.created    redrive dead letters
  redrive migrate --from redrive.db --to postgres://anna@host/shop
  redrive stats                                   count events by status
  redrive doctor                                  check the database, the work that waits and the disk
  redrive policy explain --preset webhook         show the delay before each attempt
  redrive policy simulate --events 5000           simulate retries after an outage
  redrive policy advise                           recommend a policy from recorded attempts
  redrive audit stats audit.jsonl                 count attempts and successes by category
  redrive audit verify audit.jsonl                recompute recorded retry decisions
  redrive completions bash > /etc/bash_completion.d/redrive
  redrive man --dir /usr/local/share/man/man1

The database is a file or a PostgreSQL server: --db PATH or --db postgres://…, or REDRIVE_DB, or redrive.db in this folder.
Exit codes: 0 done, 1 failed, 2 wrong arguments. Commands that print data take --json.";

/// Publish events, run the server and the scheduler, inspect and redrive dead letters
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
    /// Configuration file [default: redrive.toml in this folder, if it exists]
    // Read before everything else; see `config`.
    #[arg(long, value_name = "PATH", env = "REDRIVE_CONFIG", global = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(Demo),
    Serve(Serve),
    Scheduler(Box<Scheduler>),
    Config(Config),
    Endpoints(Endpoints),
    Replay(Replay),
    Tokens(Tokens),
    Publish(Publish),
    /// List, show and watch events
    #[command(after_help = "\
Examples:
  redrive events list --status processing
  redrive events show 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19")]
    Events(Events),
    /// List, inspect, redrive and purge dead letters
    #[command(after_help = "\
Examples:
  redrive dlq groups
  redrive dlq retry --all --reason attempts_exhausted --dry-run")]
    Dlq(Dlq),
    Stats(Stats),
    Doctor(Doctor),
    Backup(Backup),
    Migrate(Migrate),
    /// Explain, simulate or recommend a retry policy
    #[command(
        subcommand,
        after_help = "\
Examples:
  redrive policy explain --preset webhook
  redrive policy simulate --preset webhook --outage 10s
  redrive policy advise --db redrive.db"
    )]
    Policy(PolicyCommand),
    /// List, count and verify recorded attempts and retry decisions
    #[command(
        subcommand,
        after_help = "\
Examples:
  redrive audit list audit.jsonl --type retry_exhausted
  redrive audit stats --db redrive.db
  redrive audit verify --db redrive.db"
    )]
    Audit(AuditCommand),
    Bench(Bench),
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
    Man(ManPages),
}

impl Cli {
    /// Runs the command. Everything for standard output goes through `out`.
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self.command {
            Command::Demo(demo) => demo.run(out, screen),
            Command::Serve(serve) => serve.run(out),
            Command::Scheduler(scheduler) => scheduler.run(out, screen),
            Command::Config(config) => config.run(&Cli::command(), out, screen),
            Command::Endpoints(endpoints) => endpoints.run(out, screen),
            Command::Replay(replay) => replay.run(out, screen),
            Command::Tokens(tokens) => tokens.run(out, screen),
            Command::Publish(publish) => publish.run(out, screen),
            Command::Events(events) => events.run(out, screen),
            Command::Dlq(dlq) => dlq.run(out, screen),
            Command::Stats(stats) => stats.run(out, screen),
            Command::Doctor(doctor) => doctor.run(out, screen),
            Command::Backup(backup) => backup.run(out),
            Command::Migrate(migrate) => migrate.run(out, screen),
            Command::Policy(command) => command.run(out, screen),
            Command::Audit(command) => command.run(out, screen),
            Command::Bench(bench) => bench.run(out),
            Command::Completions { shell } => completions(shell, out),
            Command::Man(man) => man.run(Cli::command(), out),
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

    /// Commands in a page of the guide: those of shell examples, and those in the text.
    fn commands(page: &str) -> Vec<&str> {
        let shell = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let shell = shell.flat_map(str::lines).filter_map(|line| line.split("  #").next());
        let text = page.split('`').filter(|span| !span.contains('\n'));
        shell.chain(text).map(str::trim).filter(|text| text.starts_with("redrive ")).collect()
    }

    #[test]
    fn the_commands_of_the_retry_runbook_exist() {
        let page = include_str!("../../../docs/guide/retry-operations.md");
        let commands = commands(page);
        assert!(commands.len() >= 15, "{commands:?}");
        for command in commands {
            if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                // `ID` stands for an id.
                assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation, "{command}: {error}");
            }
        }
    }

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
