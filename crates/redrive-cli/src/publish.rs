//! `redrive publish`: stores one event, beside a bus that may be running.

use std::io::{self, Read, Write};
use std::time::Duration;

use clap::Args;
use redrive::store::NewEvent;
use redrive::{EventId, EventType};
use redrive_api::events::PublishEvent;
use redrive_retry::duration::parse_duration;

use crate::api::{EndpointSecrets, IfMissing, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::{payload, time_format};

/// Maximum size of a payload.
const MAX_PAYLOAD_BYTES: usize = NewEvent::DEFAULT_MAX_PAYLOAD_BYTES;

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
    /// Payload as JSON; reads standard input if it is - or absent
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,
    /// An id of your own, any UUID
    #[arg(long, value_name = "UUID")]
    id: Option<EventId>,
    /// Metadata; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    meta: Vec<(String, String)>,
    /// Do not handle the event before this delay, such as 5s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE, such as source=cron".to_owned()),
    }
}

impl Publish {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let payload = match self.payload.as_deref() {
            None | Some("-") => read_payload(io::stdin().lock())?,
            Some(text) => text.to_owned(),
        };
        let payload =
            payload::parse(&payload).map_err(|why| Failure::Usage(format!("the payload is {why}")))?;
        // The id is made here, so that a request without a response can be sent again with it.
        let id = self.id.unwrap_or_default();
        let event = PublishEvent {
            id: Some(*id.as_uuid()),
            metadata: self.meta.into_iter().collect(),
            delay_ms: self.delay.map(time_format::millis),
            ..PublishEvent::new(self.event_type.as_str(), payload)
        };
        let db = &self.database.db;
        self.server.run(db, EndpointSecrets::Closed, IfMissing::Create, out, screen, async |api| {
            let published = api.events().publish(&event).await.map_err(|error| match error.into() {
                Failure::Failed(why) => {
                    Failure::Failed(format!("{why}; sent again with --id {id} it is one event"))
                }
                other => other,
            })?;
            api.print_response(published, |api, published| {
                if published.duplicate {
                    // A closed standard error is no failure: the event is stored.
                    let say = "note: there was an event with this id already; nothing was changed";
                    let _ = writeln!(io::stderr().lock(), "{say}");
                }
                Ok(writeln!(api.out, "{}", published.id)?)
            })
        })
    }
}

fn read_payload(input: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    let limit = MAX_PAYLOAD_BYTES as u64 + 1;
    input.take(limit).read_to_string(&mut text).map_err(|error| {
        Failure::Failed(format!(
            "the payload cannot be read from standard input: {error}; give JSON in UTF-8"
        ))
    })?;
    if text.len() > MAX_PAYLOAD_BYTES {
        return Err(Failure::Failed(format!(
            "the payload is larger than the limit of {MAX_PAYLOAD_BYTES} bytes: store it elsewhere and publish a reference"
        )));
    }
    Ok(text)
}
