//! Where settings come from: flags over the environment over `redrive.toml` over defaults.
//!
//! The flags of `redrive serve` are the one definition: a key of the file is a flag with `_` for `-`, and its variable is
//! `REDRIVE_` and the same in capitals. What is in the file becomes the default of its flag, so clap does the rest.

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

/// Look at the settings of `redrive serve`
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
    use crate::config::layers::{keys, serve};

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
        let file = file::read("redrive.example.toml", &text, &serve())
            .unwrap_or_else(|errors| panic!("{errors:#?}"));
        for (key, arg) in keys(&serve()) {
            let entry =
                file.entry(&key).unwrap_or_else(|| panic!("redrive.example.toml says nothing about {key}"));
            let defaults: Vec<_> =
                arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            if !defaults.is_empty() && !matches!(arg.get_action(), clap::ArgAction::SetTrue) {
                assert_eq!(entry.values, defaults, "the default of {key}");
            }
        }
    }

    #[test]
    fn the_example_changes_nothing_as_it_stands() {
        let file = file::read("redrive.example.toml", EXAMPLE, &serve()).unwrap();
        assert!(keys(&serve()).iter().all(|(key, _)| file.entry(key).is_none()));
    }
}
