//! `redrive events tail`: prints events as they are published and as they end, until it is interrupted.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use redrive::subscription::Pattern;
use redrive_api::client::Error;
use redrive_api::stream::{EventNotice, EventStream, StreamMessage};
use serde::Serialize;

use super::printed::Printed;
use crate::api::Session;
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;

/// Wait before the next attempt to reach a server: at first, and at most.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(500);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(15);

/// Watch events as they are published and as they end
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive events tail
  redrive events tail --type 'order.*' --json | jq -r .id
  redrive events tail --server https://events.example.com --token rdt_…

Prints published, done and dead events from now on, until it is interrupted; with --json, one JSON object a line. A database is polled twice a second. When a server \
goes away, a note on standard error says so, and the command continues where it was as soon as the server is back.")]
pub(super) struct Tail {
    /// Only types that this pattern matches; * matches one or more characters
    #[arg(long = "type", value_name = "PATTERN", default_value = "*")]
    pattern: Pattern,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    event: &'a str,
    #[serde(flatten)]
    notice: &'a EventNotice,
}

impl Tail {
    pub(super) async fn run(self, api: &mut Session<'_>) -> Result<(), Failure> {
        let mut printed = Printed::new();
        // The first connection fails at once, so that a wrong address is reported.
        let mut stream = api.stream(self.pattern.as_str()).await?;
        loop {
            let why = follow(&mut stream, &mut printed, api).await?;
            if api.is_database() {
                return Err(Failure::Failed(why));
            }
            note(&format!("{why}; trying again until it is back"));
            stream = self.reconnect(api).await?;
            note("connected again; missed events come first");
            for (kind, event) in printed.missed(api, &self.pattern).await? {
                print(kind, &event, &mut printed, api)?;
            }
        }
    }

    /// Asks for a new stream, less and less often.
    async fn reconnect(&self, api: &Session<'_>) -> Result<EventStream, Failure> {
        let mut wait = MIN_RECONNECT_DELAY;
        loop {
            tokio::time::sleep(wait).await;
            match api.stream(self.pattern.as_str()).await {
                Ok(stream) => return Ok(stream),
                Err(error) if error.is_temporary() => wait = (wait * 2).min(MAX_RECONNECT_DELAY),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Prints notices until the stream ends, and says why it ended; an error if it cannot continue.
async fn follow(
    stream: &mut EventStream,
    printed: &mut Printed,
    api: &mut Session<'_>,
) -> Result<String, Failure> {
    loop {
        match stream.next().await {
            Ok(Some(StreamMessage::Event { kind, event })) => print(&kind, &event, printed, api)?,
            Ok(Some(StreamMessage::Lagged)) => note("too much happened at once; some of it is left out"),
            Ok(Some(StreamMessage::End { reason })) if reason == "token" => {
                let say = "the token is not valid any more: ask for a new one";
                return Err(Failure::Failed(say.to_owned()));
            }
            Ok(Some(StreamMessage::End { reason })) if reason == "shutting_down" => {
                return Ok("the server is shutting down".to_owned());
            }
            Ok(Some(StreamMessage::End { .. }) | None) => {
                return Ok("the server has ended the feed".to_owned());
            }
            Err(Error::CutOff(why)) => return Ok(format!("the feed was cut off ({why})")),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints a notice once: a notice from before a reconnect is not repeated.
fn print(
    kind: &str,
    event: &EventNotice,
    printed: &mut Printed,
    api: &mut Session<'_>,
) -> Result<(), Failure> {
    if !printed.is_new(kind, event) {
        return Ok(());
    }
    api.print_response(Line { event: kind, notice: event }, |api, _| {
        let style = match kind {
            "done" => Style::Good,
            "dead" => Style::Bad,
            _ => Style::Load,
        };
        let failures = match event.retry_count {
            0 => String::new(),
            n => format!("  after {}", format::counted(n.into(), "failure")),
        };
        let kind = api.screen.paint(style, format!("{:9}", format::one_line(kind)));
        let (at, id, event_type) = (event.updated_at, event.id, format::one_line(&event.event_type));
        Ok(writeln!(api.out, "{at}  {kind}  {id}  {event_type}{failures}")?)
    })?;
    Ok(api.out.flush()?)
}

/// Prints a note; a closed standard error is no failure.
fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {text}");
}
