//! `redrive endpoints add`: a new endpoint, and its secret, once.

use std::io::Write;

use clap::Args;
use serde_json::{Map, Value};

use super::secret::SecretArgs;
use super::settings::SettingsArgs;
use super::shown::without_guesses;
use crate::failure::Failure;
use crate::label;
use crate::place::Place;
use crate::screen::{Screen, Style};

/// Make an endpoint and show its secret, once
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints add https://example.com/hooks --pattern 'order.*'
  redrive endpoints add http://127.0.0.1:9000/ --pattern '*' --allow-range 127.0.0.0/8
  redrive endpoints add https://example.com/hooks --pattern '*' --max-attempts 12 --max-delay 6h --json | jq -r .secret

It is sent what is published from now on. `*` in a pattern stands for one or more characters, dots included.")]
pub(super) struct Add {
    /// Where messages go: https, or http where that is allowed
    #[arg(value_name = "URL")]
    url: String,
    /// Which events it wants, such as order.created or order.*; several are given one by one
    #[arg(long, value_name = "PATTERN", required = true)]
    pattern: Vec<String>,
    /// Send nothing to it yet
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    secret: SecretArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Add {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let mut body = Map::new();
        body.insert("url".into(), self.url.into());
        body.insert("patterns".into(), self.pattern.into());
        body.insert("enabled".into(), (!self.disabled).into());
        self.secret.put_into(&mut body)?;
        self.settings.put_into(&mut body);
        let mut made: Value = place.post("/v1/endpoints", &body.into()).await?;
        without_guesses(place, &mut made);
        if self.json {
            return Ok(writeln!(out, "{made}")?);
        }
        let id = made["id"].as_str().unwrap_or_default();
        let secret = label::one_line(made["secret"].as_str().unwrap_or_default());
        let kind = if secret.starts_with("whpk_") { "public key" } else { "secret" };
        writeln!(out, "{}", screen.paint(Style::Strong, label::one_line(id)))?;
        let url = label::one_line(made["url"].as_str().unwrap_or_default());
        writeln!(out, "  {url} gets what is published from now on.")?;
        writeln!(out, "  Give its receiver this {kind} to verify signatures with:")?;
        writeln!(out, "{secret}")?;
        let hint = format!("Try it: redrive endpoints test {id}{}", place.flag());
        Ok(writeln!(out, "{}", screen.paint(Style::Quiet, hint))?)
    }
}
