//! The flags for the secret of an endpoint, and `redrive endpoints rotate-secret`.

use std::io::{self, Read as _};
use std::time::Duration;

use clap::Args;
use redrive_api::endpoints::{self, Signing};
use redrive_retry::duration::parse_duration;
use redrive_webhook::EndpointId;

use crate::api::{Session, when};
use crate::failure::Failure;
use crate::format;

/// Longest secret.
const MAX_SECRET_BYTES: u64 = 1024;

/// Selects a secret.
#[derive(Debug, Args)]
pub(super) struct SecretArgs {
    /// A secret of your own, whsec_… or whsk_…; - reads it from standard input [default: a generated one]
    #[arg(long, value_name = "SECRET", conflicts_with = "signing")]
    secret: Option<String>,
    /// Kind of secret to generate: a shared secret, or a key pair of which the receiver has the public key [default: hmac]
    #[arg(long, value_name = "KIND", value_parser = ["hmac", "ed25519"])]
    signing: Option<String>,
}

impl SecretArgs {
    /// The given secret, or the kind of secret to generate.
    pub(super) fn read(self) -> Result<(Option<String>, Option<Signing>), Failure> {
        let secret = match self.secret {
            Some(secret) if secret == "-" => Some(from_stdin()?),
            other => other,
        };
        Ok((secret, self.signing.as_deref().map(Into::into)))
    }
}

fn from_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let failed = |error| Failure::Failed(format!("the secret cannot be read from standard input: {error}"));
    io::stdin().lock().take(MAX_SECRET_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

/// Rotate the secret of an endpoint; the old secret keeps signing for the overlap
#[derive(Debug, Args)]
#[command(after_help = "\
Give the new secret to the receiver before the overlap ends: until then every request has a signature of \
each, so that the receiver accepts all of them.")]
pub(super) struct RotateSecret {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Keep signing with the old secret for this time; 0s stops it at once
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "24h")]
    overlap: Duration,
    #[command(flatten)]
    secret: SecretArgs,
}

impl RotateSecret {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let (secret, signing) = self.secret.read()?;
        let how = endpoints::RotateSecret { secret, signing, overlap_s: Some(self.overlap.as_secs()) };
        let secrets = api.endpoints().rotate_secret(self.id.as_str(), &how).await?;
        api.print_response(secrets, |api, secrets| {
            let [new, older @ ..] = secrets.data.as_slice() else {
                return Err(Failure::Failed("the server has not returned the new secret".to_owned()));
            };
            writeln!(api.out, "Endpoint {} signs with a new secret from now on:", self.id)?;
            writeln!(api.out, "{}", format::one_line(&new.secret))?;
            match older.first().and_then(|old| old.expires_at).map(when) {
                Some(until) => writeln!(api.out, "The previous secret signs as well until {until}.")?,
                None => writeln!(api.out, "The previous secret signs no more.")?,
            }
            Ok(())
        })
    }
}
