//! `redrive endpoints add`: creates an endpoint and shows its secret, once.

use clap::Args;
use redrive_api::endpoints::CreateEndpoint;

use super::secret::SecretArgs;
use super::settings::SettingsArgs;
use crate::api::Session;
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;

/// Create an endpoint and show its secret, once
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive endpoints add https://example.com/hooks --pattern 'order.*'
  redrive endpoints add http://127.0.0.1:9000/ --pattern '*' --allow-range 127.0.0.0/8
  redrive endpoints add https://example.com/hooks --pattern '*' --retry-preset standard --json | jq -r .secret

It gets events that are published from now on. `*` in a pattern matches one or more characters, dots included.

By default an event that fails is dead after 5 attempts in 15 seconds. --retry-preset standard retries for three days, patient for \
almost five; --max-attempts, --base-delay, --max-delay, --multiplier and --jitter change single settings. The server's own policy is \
set with the same flags of `redrive serve`.")]
pub(super) struct Add {
    /// URL that receives the webhooks: https, or http where allowed
    #[arg(value_name = "URL")]
    url: String,
    /// Event types to send, such as order.created or order.*; may be given several times
    #[arg(long, value_name = "PATTERN", required = true)]
    pattern: Vec<String>,
    /// Create it disabled
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Add {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let (secret, signing) = self.secret.read()?;
        let settings = self.settings;
        let created = api
            .endpoints()
            .create(&CreateEndpoint {
                url: self.url,
                patterns: self.pattern,
                enabled: Some(!self.disabled),
                headers: settings.headers(),
                retry: settings.retry(),
                timeout_ms: settings.timeout_ms(),
                per_second: settings.per_second,
                concurrency: settings.concurrency,
                description: settings.description,
                secret,
                signing,
            })
            .await?;
        api.print_response(created, |api, created| {
            let (id, secret) = (format::one_line(&created.endpoint.id), format::one_line(&created.secret));
            let kind = if secret.starts_with("whpk_") { "public key" } else { "secret" };
            writeln!(api.out, "{}", api.screen.paint(Style::Strong, &id))?;
            writeln!(api.out, "  {} gets events from now on.", format::one_line(&created.endpoint.url))?;
            writeln!(api.out, "  Its receiver verifies signatures with this {kind}:")?;
            writeln!(api.out, "{secret}")?;
            if created.endpoint.retry.is_none() {
                writeln!(
                    api.out,
                    "  Unless the server has another policy, an event is dead after 5 attempts in 15 seconds."
                )?;
                let longer = format!("redrive endpoints update {id} --retry-preset standard{}", api.flag);
                writeln!(api.out, "  Retry for three days instead: {longer}")?;
            }
            let hint = format!("Test it: redrive endpoints test {id}{}", api.flag);
            Ok(writeln!(api.out, "{}", api.screen.paint(Style::Quiet, hint))?)
        })
    }
}
