//! `redrive events tail`: events as they are published and as they end, until somebody has seen enough.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::Body;
use clap::Args;
use http_body_util::BodyExt as _;
use redrive::Pattern;
use serde::Deserialize;
use serde_json::{Value, json};

use super::shown::Shown;
use crate::api::time::Instant;
use crate::database::{Database, block_on};
use crate::failure::Failure;
use crate::label;
use crate::place::{IfMissing, Keys, Place, ServerArgs, Watched, encoded};
use crate::screen::{Screen, Style};

/// No message of a feed is longer.
const LONGEST: usize = 1 << 20;

/// How long to wait for a server that is away: at first, and at most.
const SHORTEST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// Watch events as they are published and as they end
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive events tail
  redrive events tail --type 'order.*' --json | jq -r .id
  redrive events tail --server https://events.example.com --token rdt_…

Shows published, done and dead, from now on, until it is interrupted. A database is looked at twice a second. When a server goes \
away, that is said on standard error, and it goes on where it was as soon as the server is back.")]
pub(super) struct Tail {
    /// Only types that this pattern matches; * stands for one or more characters
    #[arg(long = "type", value_name = "PATTERN", default_value = "*")]
    pattern: Pattern,
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

/// Why there is nothing more to read.
enum Ended {
    /// It may come back.
    Away(String),
    /// It may not.
    For(Failure),
}

impl Tail {
    pub(super) fn run(
        self,
        server: &ServerArgs,
        db: &Database,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        block_on(async {
            let place = Place::open(server, db, Keys::None, IfMissing::Fail).await?;
            let path = format!("/v1/stream?type={}", encoded(self.pattern.as_str()));
            let mut shown = Shown::new();
            let mut feed = match place.watch(&path).await {
                Watched::Feed(body) => Feed { body, bytes: Vec::new() },
                // Whoever begins wants to hear at once that the address is wrong.
                Watched::Away(failure) | Watched::Refused(failure) => return Err(failure),
            };
            loop {
                match self.follow(&mut feed, &mut shown, out, screen).await? {
                    Ended::For(failure) => return Err(failure),
                    Ended::Away(why) if place.is_database() => return Err(Failure::Failed(why)),
                    Ended::Away(why) => note(&format!("{why}; trying again until it is back")),
                }
                feed = Feed { body: come_back(&place, &path).await?, bytes: Vec::new() };
                note("connected again; what was missed comes first");
                for (what, data) in shown.missed(&place, &self.pattern).await? {
                    self.show(&what, &data, &mut shown, out, screen)?;
                }
            }
        })
    }

    async fn follow(
        &self,
        feed: &mut Feed,
        shown: &mut Shown,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<Ended, Failure> {
        loop {
            match feed.next().await {
                Ok(Some((what, data))) => match what.as_str() {
                    "lagged" => note("too much happened at once; some of it is left out"),
                    "end" => return Ok(ended(&data)),
                    _ => self.show(&what, &data, shown, out, screen)?,
                },
                Ok(None) => return Ok(Ended::Away("the server has ended the feed".to_owned())),
                Err(Cut::Broken(why)) => return Ok(Ended::Away(format!("the feed was cut off ({why})"))),
                Err(Cut::Unreadable(failure)) => return Ok(Ended::For(failure)),
            }
        }
    }

    /// Once: what was shown before a break is not shown after it.
    fn show(
        &self,
        what: &str,
        data: &Value,
        shown: &mut Shown,
        out: &mut impl Write,
        screen: Screen,
    ) -> Result<(), Failure> {
        if shown.is_new(what, data) { self.print(what, data, out, screen) } else { Ok(()) }
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

fn ended(data: &Value) -> Ended {
    match data["reason"].as_str() {
        Some("shutting_down") => Ended::Away("the server is shutting down".to_owned()),
        Some("token") => {
            Ended::For(Failure::Failed("the token is not valid any more: ask for a new one".to_owned()))
        }
        _ => Ended::Away("the server has ended the feed".to_owned()),
    }
}

/// Waits until there is a feed again, asking less and less often.
async fn come_back(place: &Place, path: &str) -> Result<Body, Failure> {
    let mut wait = SHORTEST_WAIT;
    loop {
        tokio::time::sleep(wait).await;
        match place.watch(path).await {
            Watched::Feed(body) => return Ok(body),
            Watched::Refused(failure) => return Err(failure),
            Watched::Away(_) => wait = (wait * 2).min(LONGEST_WAIT),
        }
    }
}

/// If nobody hears it, what follows is still worth seeing.
fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {text}");
}

/// Server-sent events, one after the other.
struct Feed {
    body: Body,
    /// Of the message that is not yet whole.
    bytes: Vec<u8>,
}

impl Feed {
    /// What happened, and what is said about it.
    async fn next(&mut self) -> Result<Option<(String, Value)>, Cut> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
                let message: Vec<u8> = self.bytes.drain(..end + 2).collect();
                let message = String::from_utf8_lossy(&message);
                let field =
                    |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let (Some(what), Some(data)) = (field("event:"), field("data:")) {
                    let data = serde_json::from_str(data).map_err(|error| Cut::unreadable(&error))?;
                    return Ok(Some((what.to_owned(), data)));
                }
                continue;
            }
            if self.bytes.len() > LONGEST {
                return Err(Cut::unreadable(&"is there a redrive server?"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(Cut::Broken(error.to_string())),
            }
        }
    }
}

/// Why the next message cannot be had.
enum Cut {
    Broken(String),
    Unreadable(Failure),
}

impl Cut {
    fn unreadable(why: &dyn std::fmt::Display) -> Self {
        Cut::Unreadable(Failure::Failed(format!("the feed cannot be read: {why}")))
    }
}
