//! `redrive publish`: stores one event, beside a bus that may be running.

use std::io::{self, Read, Write};
use std::time::Duration;

use clap::Args;
use redrive::{EventId, EventType, NewEvent, To};
use redrive_retry::parse_duration;
use redrive_store::{Appended, Metadata};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::payload;
use crate::place::{Place, ServerArgs};

/// The largest payload, as the bus has it by default.
const LARGEST: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  redrive publish order.created '{\"order\": 7}'
  jq -c . order.json | redrive publish order.created
  redrive publish reminder.due '{}' --delay 2h --meta source=cron
  redrive publish order.created '{\"order\": 7}' --server https://events.example.com --token rdt_…

Returns when the event is on stable storage. A bus that is running picks it up within a second; otherwise it waits for \
the next one. Publishing the same --id twice is one event.";

/// Store an event for the bus to handle
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Publish {
    /// The type of the event, such as order.created
    #[arg(value_name = "TYPE", value_parser = |text: &str| EventType::new(text))]
    event_type: EventType,
    /// The payload as JSON; - or nothing is standard input
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,
    /// An id of your own, any UUID
    #[arg(long, value_name = "UUID")]
    id: Option<EventId>,
    /// An additional fact; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = fact)]
    meta: Vec<(String, String)>,
    /// Not to be handled before this much time has passed, such as 5s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Published {
    id: EventId,
    /// Whether there was one with this id already, and nothing was changed.
    duplicate: bool,
}

fn fact(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE, such as source=cron".to_owned()),
    }
}

impl Publish {
    pub(crate) fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let payload = match self.payload.as_deref() {
            None | Some("-") => read_payload(io::stdin().lock())?,
            Some(text) => text.to_owned(),
        };
        let payload =
            payload::parse(&payload).map_err(|why| Failure::Usage(format!("the payload is {why}")))?;
        if let Some(place) = self.server.remote()? {
            let published = block_on(self.by_server(&place, &payload))?;
            return published.print(self.json, out);
        }
        let id = self.id.unwrap_or_default();
        let db = self.database.db;
        let is_new = db.path().is_some_and(|path| !path.exists());
        let duplicate = block_on(async {
            let store = db.open_or_create().await?;
            let created_at = store.clock().now();
            let event = NewEvent {
                id,
                event_type: self.event_type,
                payload: payload.get().into(),
                metadata: self.meta.into_iter().collect::<Metadata>(),
                created_at,
                due_at: self.delay.map_or(created_at, |delay| created_at + delay),
                retry: None,
                to: To::All,
            };
            let appended = store.append(vec![event]).await?;
            store.close().await?;
            Ok(appended == [Appended::Duplicate])
        })?;
        if is_new {
            // Whoever mistyped the path should hear of it. If nobody hears, the event is stored all the same.
            let _ = writeln!(io::stderr().lock(), "note: {db} did not exist and was created");
        }
        Published { id, duplicate }.print(self.json, out)
    }

    /// The id is made here, so that a request which was answered by nobody can be sent again with it.
    async fn by_server(&self, place: &Place, payload: &RawValue) -> Result<Published, Failure> {
        let id = self.id.unwrap_or_default();
        let metadata: Metadata = self.meta.iter().cloned().collect();
        let delay_ms = self.delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        let event = EventToSend { id, event_type: &self.event_type, payload, metadata, delay_ms };
        place.post_text("/v1/events", serde_json::to_string(&event)?).await.map_err(|failure| match failure {
            Failure::Failed(why) => {
                Failure::Failed(format!("{why}; sent again with --id {id} it is one event"))
            }
            other => other,
        })
    }
}

/// As the API reads it; the payload goes as it was written.
#[derive(Debug, Serialize)]
struct EventToSend<'a> {
    id: EventId,
    #[serde(rename = "type")]
    event_type: &'a EventType,
    payload: &'a RawValue,
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
}

impl Published {
    fn print(&self, as_json: bool, out: &mut impl Write) -> Result<(), Failure> {
        if as_json {
            serde_json::to_writer(&mut *out, self)?;
            return Ok(writeln!(out)?);
        }
        if self.duplicate {
            // If nobody hears it, the event is there all the same.
            let _ = writeln!(
                io::stderr().lock(),
                "note: there was an event with this id already; nothing was changed"
            );
        }
        Ok(writeln!(out, "{}", self.id)?)
    }
}

fn read_payload(input: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    let limit = LARGEST as u64 + 1;
    input.take(limit).read_to_string(&mut text).map_err(|error| {
        Failure::Failed(format!(
            "the payload cannot be read from standard input: {error}; give JSON in UTF-8"
        ))
    })?;
    if text.len() > LARGEST {
        return Err(Failure::Failed(format!(
            "the payload is larger than the limit of {LARGEST} bytes: store it elsewhere and publish a reference"
        )));
    }
    Ok(text)
}
