//! How messages are sent to endpoints.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use redrive_webhook::{Client, Deadlines, Guard};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::failure::Failure;

/// What may be sent where.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Webhooks")]
pub(crate) struct SendingArgs {
    /// A range of private addresses to which messages may be sent, such as 127.0.0.0/8 for a receiver on this machine
    #[arg(long, value_name = "RANGE", env = "REDRIVE_ALLOW_RANGE", value_delimiter = ',', global = true)]
    allow_range: Vec<ipnet::IpNet>,
    /// Send to public addresses without TLS as well
    #[arg(long, env = "REDRIVE_ALLOW_PLAIN_HTTP", global = true)]
    allow_plain_http: bool,
    /// A file with the certificates (PEM) of authorities that are trusted beside those of the machine, such as the one of your company
    #[arg(long, value_name = "PATH", env = "REDRIVE_CA_FILE", global = true)]
    ca_file: Option<PathBuf>,
}

impl SendingArgs {
    /// Who is trusted beside those whom the machine trusts.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, Failure> {
        let Some(path) = &self.ca_file else { return Ok(Vec::new()) };
        let failed = |why: &dyn std::fmt::Display| {
            Failure::Failed(format!("the certificates in {} cannot be used: {why}", path.display()))
        };
        let read = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
        let all = read.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
        if all.is_empty() {
            return Err(failed(&"there is none; it must have -----BEGIN CERTIFICATE----- in it"));
        }
        Ok(all)
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let guard = self.allow_range.iter().fold(Guard::default(), |guard, range| guard.allow(*range));
        // An endpoint may want less, and does by itself.
        let deadlines = Deadlines {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(25),
            total: Duration::from_secs(30),
        };
        let mut client = Client::builder().guard(guard).deadlines(deadlines).trust(self.authorities()?);
        if self.allow_plain_http {
            client = client.allow_plain();
        }
        client.build().map_err(|error| Failure::Failed(error.to_string()))
    }
}
