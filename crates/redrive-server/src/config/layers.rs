//! Puts the layers over each other: the file becomes the defaults of the flags, and clap reads the rest.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, CommandFactory as _, FromArgMatches as _};

use super::file::{self, File};
use crate::api::LimitArgs;
use crate::cli::Cli;
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::scheduler::SchedulerArgs;
use crate::serve::Serve;
use crate::serve::secret_key::SecretKeyArgs;
use crate::serve::sending::SendingArgs;
use crate::telemetry::TelemetryArgs;

/// Is looked at if nobody names another.
const USUAL_FILE: &str = "redrive.toml";

/// Variables that count for many programs, after the file: what is said to this one counts first.
const STANDARD: [(&str, &str); 2] =
    [("otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"), ("otlp_service_name", "OTEL_SERVICE_NAME")];

/// What was read, and from where.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) matches: ArgMatches,
    pub(super) file: File,
}

/// The command line with all that is below it. Wrong arguments, help and the like end the process, as clap does it.
pub(crate) fn parse() -> Result<Cli, Failure> {
    let Layers { matches, .. } = layers()?;
    Cli::from_arg_matches(&matches).map_err(|error| error.exit())
}

pub(super) fn layers() -> Result<Layers, Failure> {
    let words: Vec<OsString> = std::env::args_os().collect();
    // First only what was typed: which command it is, and which file is meant.
    let typed = without_environment(Cli::command())
        .try_get_matches_from(&words)
        // Help shows the variables as well.
        .unwrap_or_else(|_| with_environment(Cli::command()).get_matches_from(&words));
    let leaf = leaf(&typed);
    let is_typed = |name: &str| {
        leaf.try_contains_id(name).is_ok() && leaf.value_source(name) == Some(ValueSource::CommandLine)
    };
    if is_typed("server") && is_typed("db") {
        return Err(Failure::Usage("give --server or --db, not both".to_owned()));
    }
    // What has nothing to do with a database has nothing to do with the file.
    let file = if leaf.try_contains_id("db").is_ok() { find(leaf)? } else { File::default() };
    let mut command = with_file(with_environment(Cli::command()), &file);
    if is_typed("db") {
        command = each(command, &|arg| if arg.get_id() == "server" { unset(arg) } else { arg });
    }
    Ok(Layers { matches: command.get_matches_from(&words), file })
}

/// The file that is in force, and everything that is wrong with it and with the environment.
fn find(leaf: &ArgMatches) -> Result<File, Failure> {
    let typed = leaf.try_get_one::<std::path::PathBuf>("config").ok().flatten().cloned();
    let named =
        typed.or_else(|| std::env::var_os("REDRIVE_CONFIG").filter(|name| !name.is_empty()).map(Into::into));
    let known = Known::new();
    let mut errors = wrong_variables(&known.serve);
    let path = named.as_deref().unwrap_or_else(|| Path::new(USUAL_FILE));
    let mut file = File::default();
    match std::fs::read_to_string(path) {
        Ok(text) => match file::read(&path.display().to_string(), &text, &known) {
            Ok(read) => file = read,
            Err(wrong) => errors.extend(wrong),
        },
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            errors.push(format!("{} cannot be read: {error}; give the file with --config", path.display()));
        }
    }
    if errors.is_empty() { Ok(file) } else { Err(Failure::Usage(errors.join("\nerror: "))) }
}

/// `redrive scheduler` as it would be started without any flag: the command with its variables, what was read, and its settings.
pub(super) fn scheduler(file: &File) -> Result<(Started, SchedulerArgs), Failure> {
    let command = with_file(with_environment(Cli::command()), file);
    let own = command.find_subcommand("scheduler").cloned().unwrap_or_default();
    let matches = own
        .clone()
        .try_get_matches_from(["scheduler"])
        .map_err(|error| Failure::Usage(format!("[scheduler]: {}", first_paragraph(&error))))?;
    let args =
        SchedulerArgs::from_arg_matches(&matches).map_err(|error| Failure::Usage(first_paragraph(&error)))?;
    Ok((Started { command: own, matches }, args))
}

/// A command, and what was read.
pub(super) struct Started {
    pub(super) command: Command,
    pub(super) matches: ArgMatches,
}

/// What a variable of the standard says about a key, and how it is called. One that is empty says nothing.
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
            (None, _) => continue, // clap says it
            (Some(text), Some(delimiter)) => text.split(delimiter).map(str::to_owned).collect(),
            (Some(text), None) => vec![text.to_owned()],
        };
        let wrong = texts.iter().filter_map(|text| try_value(serve, &arg, text).err());
        errors.extend(wrong.map(|why| format!("{}: {why}", variable(&key))));
    }
    errors
}

/// What can be set.
pub(super) struct Known {
    /// `redrive serve` by itself, without the environment.
    pub(super) serve: Command,
    /// `redrive scheduler`, the same.
    pub(super) scheduler: Command,
}

impl Known {
    pub(super) fn new() -> Self {
        let scheduler = SchedulerArgs::augment_args(Command::new("scheduler"));
        Known { serve: serve(), scheduler: without_environment(scheduler) }
    }
}

/// `redrive serve` by itself, without the environment.
pub(super) fn serve() -> Command {
    without_environment(Serve::augment_args(Command::new("serve")))
}

/// What can stand in the file: every flag of a command that is shown.
pub(super) fn keys(serve: &Command) -> Vec<(String, Arg)> {
    let shown = serve.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| Some((key(arg)?, arg.clone()))).collect()
}

/// What an argument is called in the file.
pub(super) fn key(arg: &Arg) -> Option<String> {
    Some(arg.get_long()?.replace('-', "_"))
}

/// What a key is called in the environment.
pub(super) fn variable(key: &str) -> String {
    format!("REDRIVE_{}", key.to_ascii_uppercase())
}

/// Whether an argument takes this value.
pub(super) fn try_value(serve: &Command, arg: &Arg, value: &str) -> Result<(), String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        let is_switch = matches!(value, "true" | "false");
        return if is_switch { Ok(()) } else { Err("use true or false".to_owned()) };
    }
    let flag = format!("--{}={value}", arg.get_long().unwrap_or_default());
    let tried = serve.clone().no_binary_name(true).try_get_matches_from([flag]);
    tried.map(drop).map_err(|error| first_paragraph(&error))
}

fn first_paragraph(error: &clap::Error) -> String {
    let said = error.render().to_string();
    let paragraph = said.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The command that is meant, after all subcommands.
pub(super) fn leaf(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| leaf(inner))
}

/// Changes every argument of a command and of those below it.
fn each(command: Command, change: &dyn Fn(Arg) -> Arg) -> Command {
    command.mut_args(change).mut_subcommands(|below| each(below, change))
}

fn unset(arg: Arg) -> Arg {
    arg.env(Resettable::<clap::builder::OsStr>::Reset)
}

fn without_environment(command: Command) -> Command {
    each(command, &unset)
}

/// Every flag of `redrive serve` and of `redrive scheduler` has a variable.
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

/// The scheduler's database has a name of its own in the specification. It counts before ours.
fn specified(arg: Arg) -> Arg {
    let is_named = std::env::var_os(DATABASE_URL).is_some_and(|value| !value.is_empty());
    match arg.get_id().as_str() {
        "db" if is_named => arg.env(DATABASE_URL),
        // Several are several flags, or sections of the file.
        "queue" => unset(arg),
        _ => arg,
    }
}

const DATABASE_URL: &str = "DATABASE_URL";

/// What the file says is the default of `redrive serve`; what says where the database is and how it is opened is that of every
/// command.
fn with_file(command: Command, file: &File) -> Command {
    let shared = SendingArgs::augment_args(SecretKeyArgs::augment_args(DatabaseArgs::augment_args(
        Command::new("shared"),
    )));
    let shared: Vec<_> = shared.get_arguments().map(|arg| arg.get_id().clone()).collect();
    let told = |arg: Arg| {
        let Some(key) = key(&arg) else { return arg };
        match (file.entry(&key), standard(&key)) {
            (Some(entry), _) => arg.default_values(entry.values.clone()),
            (None, Some((_, value))) => arg.default_value(value),
            (None, None) => arg,
        }
    };
    let told_scheduler = |arg: Arg| {
        let Some(entry) = key(&arg).and_then(|key| file.scheduler_entry(&key)) else {
            return if is_common(&arg) { told(arg) } else { arg };
        };
        arg.default_values(entry.values.clone())
    };
    let told_if_shared = |arg: Arg| if shared.contains(arg.get_id()) { told(arg) } else { arg };
    each(command, &told_if_shared)
        .mut_subcommand("serve", |serve| serve.mut_args(told))
        .mut_subcommand("scheduler", |scheduler| scheduler.mut_args(told_scheduler))
        .mut_subcommand("config", |config| config.mut_subcommand("check", |check| check.mut_args(told)))
}

/// Whether a setting means the same for every service, so that the top of the file says it for the scheduler as well.
pub(super) fn is_common(arg: &Arg) -> bool {
    let common = TelemetryArgs::augment_args(LimitArgs::augment_args(DatabaseArgs::augment_args(
        Command::new("common"),
    )));
    let id = arg.get_id();
    matches!(id.as_str(), "log_format" | "shutdown_timeout")
        || common.get_arguments().any(|arg| arg.get_id() == id)
}
