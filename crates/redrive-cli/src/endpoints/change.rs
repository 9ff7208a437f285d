//! `redrive endpoints update`, `enable`, `disable` and `remove`.

use std::collections::BTreeMap;

use clap::Args;
use redrive_api::endpoints::UpdateEndpoint;
use redrive_webhook::EndpointId;

use super::settings::SettingsArgs;
use super::show::print;
use crate::api::Session;
use crate::failure::Failure;

/// Change an endpoint; a flag that is not given changes nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --url https://example.com/new
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --retry-preset standard
  redrive endpoints update ep_0190b3c47d2e7a118f006d5e4c3b2a19 --no-retry --per-second 20

--pattern and --header replace all patterns and all headers.")]
pub(super) struct Update {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// URL that receives the webhooks
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
    /// Remove the endpoint's own retry policy and use the server's
    #[arg(long, conflicts_with_all = ["retry_preset", "max_attempts", "base_delay", "max_delay", "multiplier", "jitter"])]
    no_retry: bool,
    /// Change the endpoint only if it still has this version, as `show` prints it
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Update {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
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
        api.print_response(endpoint, print)
    }
}

/// Enables or disables an endpoint.
pub(super) async fn switch(id: &EndpointId, on: bool, api: &mut Session<'_>) -> Result<(), Failure> {
    let changes = UpdateEndpoint { enabled: Some(on), ..UpdateEndpoint::default() };
    let endpoint = api.endpoints().update(id.as_str(), &changes).await?;
    api.print_response(endpoint, |api, _| {
        let flag = &api.flag;
        if on {
            writeln!(api.out, "Endpoint {id} is enabled.")?;
            writeln!(api.out, "Replay missed events: redrive replay endpoint {id}{flag}")?;
        } else {
            writeln!(api.out, "Endpoint {id} is disabled; events that it misses are dead-lettered.")?;
            writeln!(api.out, "Enable it again: redrive endpoints enable {id}{flag}")?;
        }
        Ok(())
    })
}

pub(super) async fn remove(id: &EndpointId, api: &mut Session<'_>) -> Result<(), Failure> {
    api.endpoints().remove(id.as_str()).await?;
    if api.json {
        return Ok(()); // the API answers without a body
    }
    Ok(writeln!(api.out, "Endpoint {id} is removed; its open deliveries are dead-lettered.")?)
}
