//! What messages are signed with: the flags, and `redrive endpoints rotate-secret`.

use std::io::{self, Read as _, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use redrive_retry::parse_duration;
use redrive_webhook::EndpointId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::path;
use crate::failure::Failure;
use crate::label;
use crate::moment;
use crate::place::Place;

/// No secret is longer.
const LONGEST: u64 = 1024;

/// How messages are signed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Signing {
    /// With a secret that both sides know
    Hmac,
    /// With a key pair: the receiver knows the public key only
    Ed25519,
}

/// Which secret.
#[derive(Debug, Args)]
pub(super) struct SecretArgs {
    /// A secret of your own, whsec_… or whsk_…; - reads it from standard input, where nobody else sees it [default: a new one]
    #[arg(long, value_name = "SECRET", conflicts_with = "signing")]
    secret: Option<String>,
    /// What kind of secret is made [default: hmac]
    #[arg(long, value_name = "KIND")]
    signing: Option<Signing>,
}

impl SecretArgs {
    pub(super) fn put_into(self, body: &mut Map<String, Value>) -> Result<(), Failure> {
        let secret = match self.secret {
            Some(secret) if secret == "-" => Some(from_stdin()?),
            other => other,
        };
        if let Some(secret) = secret {
            body.insert("secret".into(), secret.into());
        }
        if let Some(signing) = self.signing {
            let name = if signing == Signing::Hmac { "hmac" } else { "ed25519" };
            body.insert("signing".into(), name.into());
        }
        Ok(())
    }
}

fn from_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let failed = |error| Failure::Failed(format!("the secret cannot be read from standard input: {error}"));
    io::stdin().lock().take(LONGEST).read_to_string(&mut text).map_err(failed)?;
    Ok(text.trim().to_owned())
}

/// Sign with another secret from now on, and with the present one for a while as well
#[derive(Debug, Args)]
#[command(after_help = "\
Give the new secret to the receiver before the overlap ends: until then every message has a signature of \
each, so that nothing is refused meanwhile.")]
pub(super) struct RotateSecret {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// For how long messages are signed with the present secret as well; 0s ends it at once
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "24h")]
    overlap: Duration,
    #[command(flatten)]
    secret: SecretArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What receivers verify with, as the API shows it.
#[derive(Debug, Deserialize, Serialize)]
struct Secrets {
    data: Vec<Secret>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Secret {
    secret: String,
    created_at: crate::api::time::Instant,
    expires_at: Option<crate::api::time::Instant>,
}

impl RotateSecret {
    pub(super) async fn run(self, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
        let mut body = Map::new();
        body.insert("overlap_s".into(), self.overlap.as_secs().into());
        self.secret.put_into(&mut body)?;
        let url = format!("{}/secret/rotate", path(&self.id));
        let mut secrets: Secrets = place.post(&url, &body.into()).await?;
        // Those before are known to who needs them.
        secrets.data.truncate(2);
        let old = if secrets.data.len() > 1 { secrets.data.pop() } else { None };
        let Some(new) = secrets.data.pop() else {
            return Err(Failure::Failed("the server has not said what the new secret is".to_owned()));
        };
        let until = old.and_then(|old| old.expires_at);
        if self.json {
            let shown = serde_json::json!({
                "id": self.id,
                "secret": new.secret,
                "previous_expires_at": until,
            });
            return Ok(writeln!(out, "{shown}")?);
        }
        writeln!(out, "Endpoint {} signs with a new secret from now on:", self.id)?;
        writeln!(out, "{}", label::one_line(&new.secret))?;
        match until {
            Some(until) => writeln!(
                out,
                "The one before signs beside it until {} ({}).",
                until.0,
                moment::relative(until.0, moment::now())
            )?,
            None => writeln!(out, "The one before signs no more.")?,
        }
        Ok(())
    }
}
