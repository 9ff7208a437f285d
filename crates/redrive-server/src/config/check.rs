//! `redrive config check`: what is in force, and where it comes from.

use std::io::Write;

use clap::parser::ValueSource;
use clap::{Arg, Args};
use serde::Serialize;
use serde_json::json;

use super::layers::{Layers, key, keys, layers, leaf, serve, standard, variable};
use crate::database::Database;
use crate::failure::Failure;
use crate::label;
use crate::screen::Screen;
use crate::serve::Serve;
use crate::table::{Align, Table};

/// Say which settings `redrive serve` would have, and where each comes from
#[derive(Debug, Args)]
#[command(after_help = "\
Takes every flag of `redrive serve`. Exit code 2 if something is wrong, with everything that is.")]
pub(super) struct Check {
    #[command(flatten)]
    serve: Serve,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One setting.
#[derive(Debug, Serialize)]
struct Setting {
    key: String,
    /// Secrets are not shown.
    value: Option<String>,
    source: String,
}

impl Check {
    pub(super) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let layers = layers()?;
        let settings: Vec<Setting> =
            keys(&serve()).iter().map(|(_, arg)| layers.setting(arg)).chain(secret_key()).collect();
        self.serve.check()?;
        if self.json {
            return Ok(writeln!(out, "{}", json!({ "settings": settings }))?);
        }
        let mut table = Table::new(["key", "value", "from"].map(|name| (name, Align::Left)));
        for setting in settings {
            table.row([setting.key, setting.value.unwrap_or_else(|| "-".to_owned()), setting.source]);
        }
        Ok(table.print(out, screen)?)
    }
}

/// From the environment only, and never shown.
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
        let value = texts.map(|texts| label::one_line(&texts.join(",")));
        // The address of a database may have a password in it, and a header a token.
        let value = value.map(|text| match id {
            "db" => text.parse::<Database>().map_or(text, |db| db.to_string()),
            "otlp_header" => "(not shown)".to_owned(),
            _ => text,
        });
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
}
