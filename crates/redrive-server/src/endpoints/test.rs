//! `redrive endpoints test`: one message now, and what came of it.

use std::io::Write;

use clap::Args;
use redrive_webhook::EndpointId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::path;
use crate::failure::Failure;
use crate::label;
use crate::place::Place;
use crate::screen::{Screen, Style};

/// Send a message of the type redrive.test to an endpoint at once, and show what came of it
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if the endpoint has answered 2xx, 1 if not. On a database, the message is sent from here; with --server, from the server.")]
pub(super) struct Test {
    /// The endpoint
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was answered, as the API shows it.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    url: String,
    pub(super) status: Option<u16>,
    latency_ms: u64,
    body: Option<String>,
    failed: Option<String>,
}

impl Test {
    pub(super) async fn run(
        self,
        place: &Place,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        let record: Value = place.post(&format!("{}/test", path(&self.id)), &json!({})).await?;
        let read: Record = serde_json::from_value(record.clone())
            .map_err(|error| Failure::Failed(format!("the answer cannot be read: {error}")))?;
        if self.json {
            writeln!(out, "{record}")?;
        } else {
            read.print(out, screen)?;
        }
        match read.failed {
            None => Ok(()),
            Some(why) => {
                Err(Failure::Failed(format!("the endpoint did not take it: {}", label::one_line(&why))))
            }
        }
    }
}

impl Record {
    fn print(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let took = label::duration(self.latency_ms);
        let url = label::one_line(&self.url);
        match self.status {
            Some(status) => {
                let style = if self.failed.is_none() { Style::Good } else { Style::Bad };
                writeln!(out, "{url} answered {} after {took}", screen.paint(style, status))?;
            }
            None => writeln!(out, "{url} did not answer ({took})")?,
        }
        if let Some(body) = &self.body {
            writeln!(out, "{}", label::cut(&label::one_line(body), screen.width))?;
        }
        Ok(())
    }
}
