//! Flags and HTTP client for requests to webhook endpoints.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use redrive_webhook::{Client, Deadlines, Guard};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::failure::Failure;

/// Flags of the webhook client.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Webhooks")]
pub struct SendingArgs {
    /// Allow messages to this range of private addresses, such as 127.0.0.0/8 for a receiver on this machine
    #[arg(long, value_name = "RANGE", env = "REDRIVE_ALLOW_RANGE", value_delimiter = ',', global = true)]
    allow_range: Vec<ipnet::IpNet>,
    /// Allow plain HTTP to public addresses
    #[arg(long, env = "REDRIVE_ALLOW_PLAIN_HTTP", global = true)]
    allow_plain_http: bool,
    /// Trust the CA certificates (PEM) in this file in addition to those of the system, such as the CA of your company
    #[arg(long, value_name = "PATH", env = "REDRIVE_CA_FILE", global = true)]
    ca_file: Option<PathBuf>,
}

impl SendingArgs {
    /// CA certificates to trust in addition to those of the system.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, Failure> {
        let Some(path) = &self.ca_file else { return Ok(Vec::new()) };
        let failed = |why: &dyn std::fmt::Display| {
            Failure::Failed(format!("cannot use the certificates in {}: {why}", path.display()))
        };
        let read = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
        let all = read.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
        if all.is_empty() {
            return Err(failed(&"the file has none; it must contain -----BEGIN CERTIFICATE-----"));
        }
        Ok(all)
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let guard = self.allow_range.iter().fold(Guard::default(), |guard, range| guard.allow(*range));
        // Upper bounds: an endpoint may set shorter ones.
        let deadlines = Deadlines {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(25),
            total: Duration::from_secs(30),
        };
        let mut client = Client::builder().guard(guard).deadlines(deadlines).trust(self.authorities()?);
        if self.allow_plain_http {
            client = client.allow_plain();
        }
        client.build().map_err(Failure::failed)
    }
}
