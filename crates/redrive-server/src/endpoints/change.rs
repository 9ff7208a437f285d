//! `redrive endpoints update`, `enable`, `disable` and `remove`.

use std::io::Write;

use clap::Args;
use redrive_webhook::EndpointId;
use serde_json::{Map, Value, json};

use super::path;
use super::settings::SettingsArgs;
use super::shown::{Endpoint, without_guesses};
use crate::failure::Failure;
use crate::place::Place;
use crate::screen::{Screen, Style};

/// Change an endpoint; what is not given stays as it is
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --url https://example.com/new
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --no-retry --per-second 20

Patterns and headers are given anew, all of them.")]
pub(super) struct Update {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Where messages go
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Which events it wants; all of them anew
    #[arg(long, value_name = "PATTERN")]
    pattern: Vec<String>,
    /// Send no header along
    #[arg(long, conflicts_with = "header")]
    no_headers: bool,
    /// Send as fast as it goes
    #[arg(long, conflicts_with = "per_second")]
    no_per_second: bool,
    /// Try again as the server has it
    #[arg(long, conflicts_with_all = ["max_attempts", "base_delay", "max_delay", "multiplier", "jitter"])]
    no_retry: bool,
    /// Only if it is still in this version, as `show` says it
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Update {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let mut body = Map::new();
        self.settings.put_into(&mut body);
        if let Some(url) = self.url {
            body.insert("url".into(), url.into());
        }
        if !self.pattern.is_empty() {
            body.insert("patterns".into(), self.pattern.into());
        }
        if self.no_headers {
            body.insert("headers".into(), json!({}));
        }
        if self.no_per_second {
            body.insert("per_second".into(), Value::Null);
        }
        if self.no_retry {
            body.insert("retry".into(), Value::Null);
        }
        if body.is_empty() {
            return Err(Failure::Usage(
                "nothing to change: see `redrive endpoints update --help`".to_owned(),
            ));
        }
        if let Some(version) = self.if_version {
            body.insert("version".into(), version.into());
        }
        let mut endpoint: Value = place.patch(&path(&self.id), &body.into()).await?;
        without_guesses(place, &mut endpoint);
        if self.json {
            return Ok(writeln!(out, "{endpoint}")?);
        }
        writeln!(out, "{}", screen.paint(Style::Strong, &self.id))?;
        Endpoint::read(&endpoint)?.print(out, screen)
    }
}

#[derive(Debug, Args)]
pub(super) struct Switch {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Switch {
    pub(super) async fn run(self, on: bool, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let mut endpoint: Value = place.patch(&path(&self.id), &json!({ "enabled": on })).await?;
        without_guesses(place, &mut endpoint);
        if self.json {
            return Ok(writeln!(out, "{endpoint}")?);
        }
        let (id, flag) = (&self.id, place.flag());
        if on {
            writeln!(out, "Endpoint {id} is sent to again.")?;
            writeln!(out, "What it has missed: redrive replay endpoint {id}{flag}")?;
        } else {
            writeln!(
                out,
                "Nothing is sent to endpoint {id} any more; what it misses goes to the dead-letter queue."
            )?;
            writeln!(out, "The way back: redrive endpoints enable {id}{flag}")?;
        }
        Ok(())
    }
}

/// Remove an endpoint; what it is still owed goes to the dead-letter queue
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Remove {
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        place.delete(&path(&self.id)).await?;
        if self.json {
            return Ok(writeln!(out, "{}", json!({ "removed": self.id }))?);
        }
        Ok(writeln!(
            out,
            "Endpoint {} is gone; what it was still owed goes to the dead-letter queue.",
            self.id
        )?)
    }
}
