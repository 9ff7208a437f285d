//! Merges the sources of settings: values of the file become defaults of the flags, and clap resolves flags and environment.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches as _, Parser};

use super::file::{self, File};
use super::hidden_values::hide;
use super::known_keys::{
    KnownKeys, each, first_paragraph, key, keys, try_value, unset, variable, without_environment,
};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use redrive_server::api::LimitArgs;
use redrive_server::scheduler::SchedulerArgs;
use redrive_server::serve::secret_key::SecretKeyArgs;
use redrive_server::serve::sending::SendingArgs;
use redrive_server::telemetry::TelemetryArgs;

/// Configuration file in the current folder, read if none is named.
const DEFAULT_FILE: &str = "redrive.toml";

/// OpenTelemetry variables, which apply to many programs and so rank below the file.
const STANDARD: [(&str, &str); 2] =
    [("otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"), ("otlp_service_name", "OTEL_SERVICE_NAME")];

/// Parsed command line with its configuration file.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) matches: ArgMatches,
    pub(super) file: File,
}

/// Parses the command line over all other sources. Wrong arguments and help end the process, as with clap.
pub(crate) fn parse<C: Parser>() -> Result<C, Failure> {
    let Layers { matches, .. } = layers(&C::command())?;
    C::from_arg_matches(&matches).map_err(|error| hide(error).exit())
}

pub(super) fn layers(command: &Command) -> Result<Layers, Failure> {
    let words: Vec<OsString> = std::env::args_os().collect();
    // First the command line alone: it selects the command and the file.
    let typed = without_environment(command.clone())
        .try_get_matches_from(&words)
        // Parsed again for help, which lists the variables.
        .unwrap_or_else(|_| matches_or_exit(with_environment(command.clone()), &words));
    let leaf = leaf(&typed);
    let is_typed = |name: &str| {
        leaf.try_contains_id(name).is_ok() && leaf.value_source(name) == Some(ValueSource::CommandLine)
    };
    if is_typed("server") && is_typed("db") {
        return Err(Failure::Usage("give --server or --db, not both".to_owned()));
    }
    // Commands without a database do not read the file.
    let file = if leaf.try_contains_id("db").is_ok() { find(leaf)? } else { File::default() };
    let mut command = with_file(with_environment(command.clone()), &file);
    if is_typed("db") {
        command = each(command, &|arg| if arg.get_id() == "server" { unset(arg) } else { arg });
    }
    Ok(Layers { matches: matches_or_exit(command, &words), file })
}

fn matches_or_exit(command: Command, words: &[OsString]) -> ArgMatches {
    let parsed = command.try_get_matches_from(words);
    parsed.unwrap_or_else(|error| hide(error).exit())
}

/// Reads the configuration file; reports all errors of the file and the environment.
fn find(leaf: &ArgMatches) -> Result<File, Failure> {
    let typed = leaf.try_get_one::<std::path::PathBuf>("config").ok().flatten().cloned();
    let named =
        typed.or_else(|| std::env::var_os("REDRIVE_CONFIG").filter(|name| !name.is_empty()).map(Into::into));
    let known = KnownKeys::new();
    let mut errors = wrong_variables(&known.serve);
    let path = named.as_deref().unwrap_or_else(|| Path::new(DEFAULT_FILE));
    let mut file = File::default();
    match std::fs::read_to_string(path) {
        Ok(text) => match file::read(&path.display().to_string(), &text, &known) {
            Ok(read) => file = read,
            Err(wrong) => errors.extend(wrong),
        },
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            errors.push(format!("cannot read {}: {error}; name the file with --config", path.display()));
        }
    }
    if errors.is_empty() { Ok(file) } else { Err(Failure::Usage(errors.join("\nerror: "))) }
}

/// Resolves `redrive scheduler` without flags.
pub(super) fn scheduler(command: &Command, file: &File) -> Result<(Resolved, SchedulerArgs), Failure> {
    let command = with_file(with_environment(command.clone()), file);
    let own = command.find_subcommand("scheduler").cloned().unwrap_or_default();
    let matches = own
        .clone()
        .try_get_matches_from(["scheduler"])
        .map_err(|error| Failure::Usage(format!("[scheduler]: {}", first_paragraph(&error))))?;
    let args =
        SchedulerArgs::from_arg_matches(&matches).map_err(|error| Failure::Usage(first_paragraph(&error)))?;
    Ok((Resolved { command: own, matches }, args))
}

/// Command and its parsed values.
pub(super) struct Resolved {
    pub(super) command: Command,
    pub(super) matches: ArgMatches,
}

/// Name and value of the standard variable for a key; an empty one counts as unset.
pub(super) fn standard(key: &str) -> Option<(&'static str, String)> {
    let (_, name) = STANDARD.iter().find(|(known, _)| *known == key)?;
    std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (*name, value))
}

fn wrong_variables(serve: &Command) -> Vec<String> {
    let mut errors = Vec::new();
    for (key, arg) in keys(serve) {
        let wrong =
            standard(&key).and_then(|(name, value)| Some((name, try_value(serve, &arg, &value).err()?)));
        errors.extend(wrong.map(|(name, why)| format!("{name}: {why}")));
        let Some(value) = std::env::var_os(variable(&key)) else { continue };
        let texts: Vec<String> = match (value.to_str(), arg.get_value_delimiter()) {
            (None, _) => continue, // clap reports it
            (Some(text), Some(delimiter)) => text.split(delimiter).map(str::to_owned).collect(),
            (Some(text), None) => vec![text.to_owned()],
        };
        let wrong = texts.iter().filter_map(|text| try_value(serve, &arg, text).err());
        errors.extend(wrong.map(|why| format!("{}: {why}", variable(&key))));
    }
    errors
}

/// Matches of the innermost subcommand.
pub(super) fn leaf(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| leaf(inner))
}

/// Gives every flag of `redrive serve` and `redrive scheduler` a variable.
fn with_environment(command: Command) -> Command {
    let name = |arg: Arg| match key(&arg) {
        Some(key)
            if arg.get_env().is_none() && !arg.is_hide_set() && !matches!(key.as_str(), "help" | "json") =>
        {
            arg.env(variable(&key))
        }
        _ => arg,
    };
    command
        .mut_subcommand("serve", |serve| serve.mut_args(name))
        .mut_subcommand("scheduler", |scheduler| scheduler.mut_args(name).mut_args(specified))
        .mut_subcommand("config", |config| config.mut_subcommand("check", |check| check.mut_args(name)))
}

/// Applies the specified `DATABASE_URL`, which overrides `REDRIVE_DB` for the scheduler.
fn specified(arg: Arg) -> Arg {
    let is_named = std::env::var_os(DATABASE_URL).is_some_and(|value| !value.is_empty());
    match arg.get_id().as_str() {
        "db" if is_named => arg.env(DATABASE_URL),
        // Repeatable: given by flags or by sections of the file.
        "queue" => unset(arg),
        _ => arg,
    }
}

const DATABASE_URL: &str = "DATABASE_URL";

/// Makes the values of the file defaults of `redrive serve` and `redrive scheduler`; those of the database, for every command.
fn with_file(command: Command, file: &File) -> Command {
    let shared = SendingArgs::augment_args(SecretKeyArgs::augment_args(DatabaseArgs::augment_args(
        Command::new("shared"),
    )));
    let shared: Vec<_> = shared.get_arguments().map(|arg| arg.get_id().clone()).collect();
    let from_file = |arg: Arg| {
        let Some(key) = key(&arg) else { return arg };
        match (file.entry(&key), standard(&key)) {
            (Some(entry), _) => arg.default_values(entry.values.clone()),
            (None, Some((_, value))) => arg.default_value(value),
            (None, None) => arg,
        }
    };
    let scheduler_from_file = |arg: Arg| {
        let Some(entry) = key(&arg).and_then(|key| file.scheduler_entry(&key)) else {
            return if is_common(&arg) { from_file(arg) } else { arg };
        };
        arg.default_values(entry.values.clone())
    };
    let if_shared = |arg: Arg| if shared.contains(arg.get_id()) { from_file(arg) } else { arg };
    each(command, &if_shared)
        .mut_subcommand("serve", |serve| serve.mut_args(from_file))
        .mut_subcommand("scheduler", |scheduler| scheduler.mut_args(scheduler_from_file))
        .mut_subcommand("config", |config| config.mut_subcommand("check", |check| check.mut_args(from_file)))
}

/// Whether a setting at the top of the file also applies to the scheduler.
pub(super) fn is_common(arg: &Arg) -> bool {
    let common = TelemetryArgs::augment_args(LimitArgs::augment_args(DatabaseArgs::augment_args(
        Command::new("common"),
    )));
    let id = arg.get_id();
    matches!(id.as_str(), "log_format" | "log_retries" | "shutdown_timeout")
        || common.get_arguments().any(|arg| arg.get_id() == id)
}
