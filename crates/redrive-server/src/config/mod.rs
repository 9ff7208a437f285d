//! Where settings come from: flags over the environment over `redrive.toml` over defaults.
//!
//! The flags of `redrive serve` are the one definition: a key of the file is a flag with `_` for `-`, and its variable is
//! `REDRIVE_` and the same in capitals. What is in the file becomes the default of its flag, so clap does the rest. Those of
//! `redrive scheduler` stand in the section `[scheduler]`; its variables are the specified ones.

mod check;
mod file;
mod layers;

use std::io::Write;

use clap::{Args, Subcommand};

use self::check::Check;
pub(crate) use self::layers::parse;
use crate::failure::Failure;
use crate::screen::Screen;

/// Every key with its default and a sentence about it.
const EXAMPLE: &str = include_str!("../../../../redrive.example.toml");

/// Look at the settings of `redrive serve` and `redrive scheduler`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive config example > redrive.toml
  redrive config check
  redrive config check --config /etc/redrive/redrive.toml

A flag counts before the environment, that before the file, that before the default. The file is named by --config or \
REDRIVE_CONFIG, or is redrive.toml in this folder if it is there.")]
pub(crate) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Check(Box<Check>),
    /// Print redrive.toml with every key, its default and what it means
    Example,
}

impl Config {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        match self.command {
            ConfigCommand::Check(check) => check.run(out, screen),
            ConfigCommand::Example => Ok(out.write_all(EXAMPLE.as_bytes())?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::{Known, is_common, keys};

    /// As it is if every line that only shows a default is in force.
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
        let known = Known::new();
        let file =
            file::read("redrive.example.toml", &text, &known).unwrap_or_else(|errors| panic!("{errors:#?}"));
        let of_serve = keys(&known.serve).into_iter().map(|(key, arg)| (file.entry(&key), key, arg));
        let own = keys(&known.scheduler).into_iter().filter(|(key, arg)| !is_common(arg) && key != "queue");
        let of_scheduler = own.map(|(key, arg)| (file.scheduler_entry(&key), key, arg));
        for (entry, key, arg) in of_serve.chain(of_scheduler) {
            let entry = entry.unwrap_or_else(|| panic!("redrive.example.toml says nothing about {key}"));
            let defaults: Vec<_> =
                arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            if !defaults.is_empty() && !matches!(arg.get_action(), clap::ArgAction::SetTrue) {
                assert_eq!(entry.values, defaults, "the default of {key}");
            }
        }
    }

    #[test]
    fn the_example_changes_nothing_as_it_stands() {
        let known = Known::new();
        let file = file::read("redrive.example.toml", EXAMPLE, &known).unwrap();
        assert!(keys(&known.serve).iter().all(|(key, _)| file.entry(key).is_none()));
        assert!(keys(&known.scheduler).iter().all(|(key, _)| file.scheduler_entry(key).is_none()));
    }
}
