//! `redrive endpoints test`: sends one webhook now and shows the answer.

use std::io::Write;

use clap::Args;
use redrive_api::endpoints::AttemptRecord;
use redrive_webhook::EndpointId;

use crate::api::{Api, write_json};
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};

/// Send a webhook of the type redrive.test to an endpoint now, and show the answer
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if the endpoint has answered 2xx, 1 if not. On a database, this command sends it; with --server, the server.")]
pub(super) struct Test {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Test {
    pub(super) async fn run(self, api: &Api, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let record = api.endpoints().test(self.id.as_str()).await?;
        if self.json {
            write_json(out, &record)?;
        } else {
            print(&record, out, screen)?;
        }
        match record.failed {
            None => Ok(()),
            Some(why) => {
                Err(Failure::Failed(format!("the endpoint did not accept it: {}", format::one_line(&why))))
            }
        }
    }
}

fn print(record: &AttemptRecord, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
    let (url, took) = (format::one_line(&record.url), format::duration(record.latency_ms));
    match record.status {
        Some(status) => {
            let style = if record.failed.is_none() { Style::Good } else { Style::Bad };
            writeln!(out, "{url} answered {} after {took}", screen.paint(style, status))?;
        }
        None => writeln!(out, "{url} did not answer ({took})")?,
    }
    if let Some(body) = &record.body {
        writeln!(out, "{}", format::cut(&format::one_line(body), screen.width))?;
    }
    Ok(())
}
