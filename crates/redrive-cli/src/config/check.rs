//! `redrive config check`: prints the effective settings and the source of each.

use std::io::Write;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use serde::Serialize;
use serde_json::json;

use super::file::{QUEUES, SCHEDULER};
use super::known_keys::{KnownKeys, key, keys, variable};
use super::layers::{Layers, is_common, layers, leaf, scheduler, standard};
use crate::database::Database;
use crate::failure::Failure;
use crate::format;
use crate::screen::Screen;
use crate::table::Table;
use redrive_server::serve::Serve;

/// Print the effective settings of `redrive serve` and `redrive scheduler`, and the source of each
#[derive(Debug, Args)]
#[command(after_help = "\
Accepts every flag of `redrive serve`. Exit code 2 if there are errors; all of them are listed.")]
pub(super) struct Check {
    #[command(flatten)]
    serve: Serve,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Effective setting.
#[derive(Debug, Serialize)]
struct Setting {
    key: String,
    /// Secrets are hidden.
    value: Option<String>,
    source: String,
}

impl Check {
    pub(super) fn run(&self, command: &Command, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let layers = layers(command)?;
        let (known, (scheduler, args)) = (KnownKeys::new(), scheduler(command, &layers.file)?);
        let of_serve =
            keys(&known.serve).into_iter().map(|(_, arg)| layers.setting(&arg)).chain(secret_key());
        let of_scheduler = keys(&scheduler.command)
            .into_iter()
            .map(|(_, arg)| layers.scheduler_setting(&scheduler.matches, &arg));
        let settings: Vec<Setting> = of_serve.chain(of_scheduler).collect();
        self.serve.check()?;
        args.check()?;
        if self.json {
            return Ok(writeln!(out, "{}", json!({ "settings": settings }))?);
        }
        let row = |Setting { key, value, source }| [key, value.unwrap_or_else(|| "-".to_owned()), source];
        Ok(Table::new(["key", "value", "from"], settings.into_iter().map(row)).print(out, screen)?)
    }
}

/// The secret key, which comes from the environment only and is hidden.
fn secret_key() -> Option<Setting> {
    let name = variable("secret_key");
    std::env::var_os(&name).map(|_| Setting {
        key: "secret_key".to_owned(),
        value: Some("(not shown)".to_owned()),
        source: format!("environment {name}"),
    })
}

impl Layers {
    fn setting(&self, arg: &Arg) -> Setting {
        let key = key(arg).unwrap_or_default();
        let (id, leaf) = (arg.get_id().as_str(), leaf(&self.matches));
        let raw = leaf.try_get_raw(id).ok().flatten();
        let texts =
            raw.map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>());
        let value = texts.map(|texts| format::one_line(&texts.join(",")));
        let value = value.map(|text| redacted(id, text));
        let source = match leaf.value_source(id) {
            Some(ValueSource::CommandLine) => format!("flag --{}", arg.get_long().unwrap_or_default()),
            Some(ValueSource::EnvVariable) => format!("environment {}", variable(&key)),
            _ => match (self.file.entry(&key), standard(&key)) {
                (Some(entry), _) => format!("{}, line {}", self.file.name, entry.line),
                (None, Some((name, _))) => format!("environment {name}"),
                (None, None) => "default".to_owned(),
            },
        };
        Setting { key, value, source }
    }

    /// A setting of the scheduler: its section of the file overrides the top of the file.
    fn scheduler_setting(&self, matches: &ArgMatches, arg: &Arg) -> Setting {
        let (own, id) = (key(arg).unwrap_or_default(), arg.get_id().as_str());
        let raw = matches.try_get_raw(id).ok().flatten();
        let texts =
            raw.map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>());
        let value = texts.map(|texts| redacted(id, format::one_line(&texts.join(" "))));
        let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        let shared = self.file.entry(&own).filter(|_| is_common(arg));
        let source = match (matches.value_source(id), variable, self.file.scheduler_entry(&own).or(shared)) {
            (Some(ValueSource::EnvVariable), Some(name), _) => format!("environment {name}"),
            (_, _, Some(entry)) => format!("{}, line {}", self.file.name, entry.line),
            (_, _, None) => match standard(&own) {
                Some((name, _)) => format!("environment {name}"),
                None => "default".to_owned(),
            },
        };
        let own = if own == "queue" { QUEUES } else { &own };
        Setting { key: format!("{SCHEDULER}.{own}"), value, source }
    }
}

/// Hides secrets: passwords in URLs, tokens in headers.
fn redacted(id: &str, text: String) -> String {
    match id {
        "db" => text.parse::<Database>().map_or(text, |db| db.to_string()),
        "rabbitmq_url" => without_user(&text),
        "nats_url" => text.split(',').map(without_user).collect::<Vec<_>>().join(","),
        "otlp_header" => "(not shown)".to_owned(),
        _ => text,
    }
}

fn without_user(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, host)) => format!("(not shown)@{host}"),
        None => address.to_owned(),
    }
}
