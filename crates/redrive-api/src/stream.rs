//! `/v1/stream`: events as they are published and as they end, as server-sent events.

use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::client::{Body, Client, Error, Result};
use crate::events::{Event, EventStatus, EventSummary};
use crate::time::Time;

/// Longest message of a stream.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Selects the events of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct StreamQuery {
    /// Only types that this pattern matches; `*` matches one or more characters
    #[serde(rename = "type")]
    #[cfg_attr(
        feature = "schema",
        param(
            min_length = 1,
            max_length = 255,
            pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$",
            example = "order.*"
        )
    )]
    pub pattern: Option<String>,
}

/// State of an event at the time of a notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventNotice {
    /// Id of the event.
    pub id: Uuid,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Status of the event.
    pub status: EventStatus,
    /// Number of failed attempts.
    pub retry_count: u32,
    /// The time at which the event was published.
    pub created_at: Time,
    /// The time of the last change of the event.
    pub updated_at: Time,
}

macro_rules! notice_of {
    ($($event:ty),*) => { $(
        impl From<$event> for EventNotice {
            fn from(event: $event) -> Self {
                EventNotice {
                    id: event.id,
                    event_type: event.event_type,
                    status: event.status,
                    retry_count: event.retry_count,
                    created_at: event.created_at,
                    updated_at: event.updated_at,
                }
            }
        }
    )* };
}

notice_of!(Event, EventSummary);

/// One message of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamMessage {
    /// An event was `published`, is `done` or is `dead`.
    Event {
        /// The kind of notice.
        kind: String,
        /// The event.
        event: EventNotice,
    },
    /// The server left messages out because the client reads too slowly.
    Lagged,
    /// The server ends the stream for this reason.
    End {
        /// `shutting_down` or `token`.
        reason: String,
    },
}

/// Data of a `lagged` message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamLagged {
    /// Number of messages that were left out, if known.
    pub missed: Option<u64>,
}

/// Data of an `end` message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// `shutting_down` or `token`.
    pub reason: String,
}

/// Server-sent events, read one by one.
#[derive(Debug)]
pub struct EventStream {
    body: Body,
    /// Bytes of the incomplete last message.
    buffer: Vec<u8>,
}

impl Client {
    /// Opens the stream of events whose types match a pattern.
    pub async fn stream(&self, pattern: &str) -> Result<EventStream> {
        let body = self.open("/v1/stream", &StreamQuery { pattern: Some(pattern.to_owned()) }).await?;
        Ok(EventStream { body, buffer: Vec::new() })
    }
}

impl EventStream {
    /// Waits for the next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<StreamMessage>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let message: Vec<u8> = self.buffer.drain(..end + 2).collect();
                match read(&String::from_utf8_lossy(&message))? {
                    Some(message) => return Ok(Some(message)),
                    None => continue,
                }
            }
            if self.buffer.len() > MAX_MESSAGE_BYTES {
                return Err(Error::Unreadable("a message of the stream is too long".to_owned()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(Error::CutOff(error.to_string())),
            }
        }
    }
}

/// Reads one message; `None` for a comment.
fn read(message: &str) -> Result<Option<StreamMessage>> {
    let field = |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let (Some(kind), Some(data)) = (field("event:"), field("data:")) else { return Ok(None) };
    let unreadable = |error: serde_json::Error| Error::Unreadable(error.to_string());
    Ok(Some(match kind {
        "lagged" => StreamMessage::Lagged,
        "end" => {
            let StreamEnd { reason } = serde_json::from_str(data).map_err(unreadable)?;
            StreamMessage::End { reason }
        }
        _ => StreamMessage::Event {
            kind: kind.to_owned(),
            event: serde_json::from_str(data).map_err(unreadable)?,
        },
    }))
}
