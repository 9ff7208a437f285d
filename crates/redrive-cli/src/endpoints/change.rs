//! `redrive endpoints update`, `enable`, `disable` and `remove`.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use redrive_api::endpoints::UpdateEndpoint;
use redrive_webhook::EndpointId;

use super::display::print;
use super::settings::SettingsArgs;
use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::screen::{Screen, Style};

/// Change an endpoint; a flag that is not given changes nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --url https://example.com/new
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --no-retry --per-second 20

--pattern and --header replace all patterns and all headers.")]
pub(super) struct Update {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Where webhooks go
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Event types to send; replaces all of them
    #[arg(long, value_name = "PATTERN")]
    pattern: Vec<String>,
    /// Remove all headers
    #[arg(long, conflicts_with = "header")]
    no_headers: bool,
    /// Remove the rate limit
    #[arg(long, conflicts_with = "per_second")]
    no_per_second: bool,
    /// Retry by the policy of the server
    #[arg(long, conflicts_with_all = ["max_attempts", "base_delay", "max_delay", "multiplier", "jitter"])]
    no_retry: bool,
    /// Only if this is still its version, as `show` prints it
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Update {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let settings = self.settings;
        let no_headers = self.no_headers.then(BTreeMap::new);
        let changes = UpdateEndpoint {
            version: None,
            url: self.url,
            patterns: (!self.pattern.is_empty()).then_some(self.pattern),
            enabled: None,
            headers: settings.headers().or(no_headers),
            retry: settings.retry().map(Some).or(self.no_retry.then_some(None)),
            timeout_ms: settings.timeout_ms(),
            per_second: settings.per_second.map(Some).or(self.no_per_second.then_some(None)),
            concurrency: settings.concurrency,
            description: settings.description,
        };
        if changes == UpdateEndpoint::default() {
            return Err(Failure::Usage(
                "nothing to change: see `redrive endpoints update --help`".to_owned(),
            ));
        }
        let changes = UpdateEndpoint { version: self.if_version, ..changes };
        let endpoint = api.endpoints().update(self.id.as_str(), &changes).await?;
        if self.json {
            return write_json(out, &endpoint);
        }
        writeln!(out, "{}", screen.paint(Style::Strong, &self.id))?;
        print(&endpoint, out, screen)
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
    pub(super) async fn run(self, on: bool, api: &Api, out: &mut impl Write) -> Result<(), Failure> {
        let changes = UpdateEndpoint { enabled: Some(on), ..UpdateEndpoint::default() };
        let endpoint = api.endpoints().update(self.id.as_str(), &changes).await?;
        if self.json {
            return write_json(out, &endpoint);
        }
        let (id, flag) = (&self.id, api.flag());
        if on {
            writeln!(out, "Endpoint {id} is enabled.")?;
            writeln!(out, "Replay missed events: redrive replay endpoint {id}{flag}")?;
        } else {
            writeln!(out, "Endpoint {id} is disabled; events that it misses are dead-lettered.")?;
            writeln!(out, "Enable it again: redrive endpoints enable {id}{flag}")?;
        }
        Ok(())
    }
}

/// Remove an endpoint; its open deliveries are dead-lettered
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
    pub(super) async fn run(self, api: &Api, out: &mut impl Write) -> Result<(), Failure> {
        api.endpoints().remove(self.id.as_str()).await?;
        if self.json {
            return Ok(()); // the API answers without a body
        }
        Ok(writeln!(out, "Endpoint {} is removed; its open deliveries are dead-lettered.", self.id)?)
    }
}
