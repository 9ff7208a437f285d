//! `redrive events tail`: events as they are published and as they end, until somebody has seen enough.

use std::io::{self, Write};

use axum::body::Body;
use clap::Args;
use http_body_util::BodyExt as _;
use redrive::Pattern;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::time::Instant;
use crate::database::{Database, block_on};
use crate::failure::Failure;
use crate::label;
use crate::place::{IfMissing, Keys, Place, ServerArgs, encoded};
use crate::screen::{Screen, Style};

/// No message of a feed is longer.
const LONGEST: usize = 1 << 20;

/// Watch events as they are published and as they end
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive events tail
  redrive events tail --type 'order.*' --json | jq -r .id
  redrive events tail --server https://events.example.com --token rdt_…

Shows published, done and dead, from now on, until it is interrupted. A database is looked at twice a second.")]
pub(super) struct Tail {
    /// Only types that this pattern matches; * stands for one or more characters
    #[arg(long = "type", value_name = "PATTERN", default_value = "*")]
    pattern: Pattern,
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// What is said of an event.
#[derive(Debug, Deserialize)]
struct Said {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    retry_count: u32,
    updated_at: Instant,
}

impl Tail {
    pub(super) fn run(self, db: &Database, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        block_on(async {
            let place = Place::open(&self.server, db, Keys::None, IfMissing::Fail).await?;
            let path = format!("/v1/stream?type={}", encoded(self.pattern.as_str()));
            let mut feed = Feed { body: place.stream(&path).await?, bytes: Vec::new() };
            while let Some((what, data)) = feed.next().await? {
                match what.as_str() {
                    "lagged" => {
                        // If nobody hears it, what follows is still worth seeing.
                        let _ = writeln!(
                            io::stderr().lock(),
                            "note: too much happened at once; some of it is left out"
                        );
                    }
                    "end" => return Err(ended(&data)),
                    _ => self.print(&what, &data, out, screen)?,
                }
            }
            Err(Failure::Failed("the server has ended the feed; run the command again".to_owned()))
        })
    }

    fn print(&self, what: &str, data: &Value, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        if self.json {
            let mut line = json!({ "event": what });
            if let (Some(line), Some(data)) = (line.as_object_mut(), data.as_object()) {
                line.extend(data.clone());
            }
            writeln!(out, "{line}")?;
        } else {
            let said = Said::deserialize(data)
                .map_err(|error| Failure::Failed(format!("the feed cannot be read: {error}")))?;
            let style = match what {
                "done" => Style::Good,
                "dead" => Style::Bad,
                _ => Style::Load,
            };
            let failures = match said.retry_count {
                0 => String::new(),
                n => format!("  after {}", label::counted(n.into(), "failure")),
            };
            let (at, what) = (said.updated_at.0, screen.paint(style, format!("{what:9}")));
            let (id, event_type) = (label::one_line(&said.id), label::one_line(&said.event_type));
            writeln!(out, "{at}  {what}  {id}  {event_type}{failures}")?;
        }
        Ok(out.flush()?) // somebody waits for this line
    }
}

fn ended(data: &Value) -> Failure {
    Failure::Failed(match data["reason"].as_str() {
        Some("shutting_down") => {
            "the server is shutting down; run the command again when it is back".to_owned()
        }
        Some("token") => "the token is not valid any more: ask for a new one".to_owned(),
        _ => "the server has ended the feed; run the command again".to_owned(),
    })
}

/// Server-sent events, one after the other.
struct Feed {
    body: Body,
    /// Of the message that is not yet whole.
    bytes: Vec<u8>,
}

impl Feed {
    /// What happened, and what is said about it.
    async fn next(&mut self) -> Result<Option<(String, Value)>, Failure> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
                let message: Vec<u8> = self.bytes.drain(..end + 2).collect();
                let message = String::from_utf8_lossy(&message);
                let field =
                    |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let (Some(what), Some(data)) = (field("event:"), field("data:")) {
                    let data = serde_json::from_str(data)
                        .map_err(|error| Failure::Failed(format!("the feed cannot be read: {error}")))?;
                    return Ok(Some((what.to_owned(), data)));
                }
                continue;
            }
            if self.bytes.len() > LONGEST {
                return Err(Failure::Failed(
                    "the feed cannot be read: is there a redrive server?".to_owned(),
                ));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(Failure::Failed(format!("the feed was cut off: {error}"))),
            }
        }
    }
}
