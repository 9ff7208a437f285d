//! Resolves settings: flags override the environment, which overrides `redrive.toml`, which overrides the defaults.
//!
//! The flags of `redrive serve` define everything: a key of the file is a flag with `_` for `-`, and its variable is `REDRIVE_` plus
//! the key in capitals. A value of the file becomes the default of its flag, and clap resolves the rest. The section `[scheduler]`
//! has the settings of `redrive scheduler`; its variables are the specified ones.

mod check;
mod file;
mod hidden_values;
mod known_keys;
mod layers;

use std::io::Write;

use clap::{Args, Command, Subcommand};

use self::check::Check;
pub(crate) use self::layers::parse;
use crate::failure::Failure;
use crate::screen::Screen;

/// Every key with its default and an explanation.
const EXAMPLE: &str = include_str!("../../redrive.example.toml");

/// Check the settings of `redrive serve` and `redrive scheduler`, or print an example
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive config example > redrive.toml
  redrive config check
  redrive config check --config /etc/redrive/redrive.toml

Flags override the environment, the environment overrides the file, the file overrides the defaults. --config or REDRIVE_CONFIG \
names the file; without them it is redrive.toml in this folder, if it exists.")]
pub(crate) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Check(Box<Check>),
    /// Print a redrive.toml with every key, its default and an explanation
    Example,
}

impl Config {
    /// `command` is the whole command line, of which the settings are a part.
    pub(crate) fn run(self, command: &Command, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self.command {
            ConfigCommand::Check(check) => check.run(command, out, screen),
            ConfigCommand::Example => Ok(out.write_all(EXAMPLE.as_bytes())?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::known_keys::{KnownKeys, keys};
    use crate::config::layers::is_common;

    /// The example with every commented default in force.
    fn with_defaults() -> String {
        let shown = |line: &str| {
            line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
        };
        let line = |line: &str| if shown(line) { line[1..].to_owned() } else { line.to_owned() };
        EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_example_has_every_key_with_its_default() {
        let text = with_defaults();
        let known = KnownKeys::new();
        let file =
            file::read("redrive.example.toml", &text, &known).unwrap_or_else(|errors| panic!("{errors:#?}"));
        let of_serve = keys(&known.serve).into_iter().map(|(key, arg)| (file.entry(&key), key, arg));
        let own = keys(&known.scheduler).into_iter().filter(|(key, arg)| !is_common(arg) && key != "queue");
        let of_scheduler = own.map(|(key, arg)| (file.scheduler_entry(&key), key, arg));
        for (entry, key, arg) in of_serve.chain(of_scheduler) {
            let entry = entry.unwrap_or_else(|| panic!("redrive.example.toml lacks {key}"));
            let defaults: Vec<_> =
                arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            if !defaults.is_empty() && !matches!(arg.get_action(), clap::ArgAction::SetTrue) {
                assert_eq!(entry.values, defaults, "the default of {key}");
            }
        }
    }

    #[test]
    fn the_example_as_shipped_sets_nothing() {
        let known = KnownKeys::new();
        let file = file::read("redrive.example.toml", EXAMPLE, &known).unwrap();
        assert!(keys(&known.serve).iter().all(|(key, _)| file.entry(key).is_none()));
        assert!(keys(&known.scheduler).iter().all(|(key, _)| file.scheduler_entry(key).is_none()));
    }
}
