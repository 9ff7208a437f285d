//! Keys of `redrive.toml`, each with its flag and its variable, and the check of a value by its flag.

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Args as _, Command};

use super::hidden_values::hide;
use redrive_server::scheduler::SchedulerArgs;
use redrive_server::serve::Serve;

/// Commands whose flags define the keys.
pub(super) struct KnownKeys {
    /// `redrive serve` without the environment.
    pub(super) serve: Command,
    /// `redrive scheduler` without the environment.
    pub(super) scheduler: Command,
}

impl KnownKeys {
    pub(super) fn new() -> Self {
        let serve = without_environment(Serve::augment_args(Command::new("serve")));
        let scheduler = SchedulerArgs::augment_args(Command::new("scheduler"));
        KnownKeys { serve, scheduler: without_environment(scheduler) }
    }
}

/// Keys of the file: every visible flag of a command.
pub(super) fn keys(serve: &Command) -> Vec<(String, Arg)> {
    let shown = serve.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| Some((key(arg)?, arg.clone()))).collect()
}

/// Key of a flag in the file.
pub(super) fn key(arg: &Arg) -> Option<String> {
    Some(arg.get_long()?.replace('-', "_"))
}

/// Variable of a key in the environment.
pub(super) fn variable(key: &str) -> String {
    format!("REDRIVE_{}", key.to_ascii_uppercase())
}

/// Checks whether a flag accepts this value.
pub(super) fn try_value(serve: &Command, arg: &Arg, value: &str) -> Result<(), String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        let is_switch = matches!(value, "true" | "false");
        return if is_switch { Ok(()) } else { Err("use true or false".to_owned()) };
    }
    let flag = format!("--{}={value}", arg.get_long().unwrap_or_default());
    let tried = serve.clone().no_binary_name(true).try_get_matches_from([flag]);
    tried.map(drop).map_err(|error| first_paragraph(&hide(error)))
}

/// First paragraph of an error of the command line, on one line.
pub(super) fn first_paragraph(error: &clap::Error) -> String {
    let said = error.render().to_string();
    let paragraph = said.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Changes every argument of a command and its subcommands.
pub(super) fn each(command: Command, change: &dyn Fn(Arg) -> Arg) -> Command {
    command.mut_args(change).mut_subcommands(|below| each(below, change))
}

/// Takes the variable from an argument.
pub(super) fn unset(arg: Arg) -> Arg {
    arg.env(Resettable::<clap::builder::OsStr>::Reset)
}

/// Takes the variables from every argument of a command and its subcommands.
pub(super) fn without_environment(command: Command) -> Command {
    each(command, &unset)
}
