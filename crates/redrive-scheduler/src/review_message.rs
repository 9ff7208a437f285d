//! The message that a person looks at: everything that is known, in its body and in short in its headers.

use base64::DecodeError;
use redrive_store::EventId;
use serde::Serialize;

use crate::header;
use crate::history::HistoryEntry;
use crate::payload::Payload;
use crate::properties::{HeaderValue, Properties};
use crate::republish::{PERSISTENT, once};
use crate::task::{ReviewReason, Task, Via};
use crate::transport::Publication;

/// The AMQP `type` of it.
pub const REVIEW_MESSAGE: &str = "ReviewMessage";

/// A body that is larger is not wrapped once more: brokers take 16 MiB if nobody says otherwise.
const LARGEST_BODY: usize = 12 << 20;

/// What stands in a header is cut after so many characters, because all headers together must fit into a frame.
const LONGEST_TEXT: usize = 1000;

/// How much of it is said.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Everything, as JSON.
    Whole,
    /// The body is that of the message that failed; the headers say the rest in short.
    PayloadAsBody,
    /// Everything but the payload, which is in the store.
    WithoutPayload,
}

/// Why a task is shown to a person.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Cause<'a> {
    pub(crate) reason: ReviewReason,
    pub(crate) why: &'a str,
}

#[derive(Serialize)]
struct Body<'a> {
    task: EventId,
    message_id: &'a str,
    original_queue: &'a str,
    reason: ReviewReason,
    why: &'a str,
    error_reason: &'a str,
    retry_count: u32,
    max_retries: u32,
    via: Via,
    received_at: redrive_retry::Timestamp,
    first_failed_at: redrive_retry::Timestamp,
    payload: Option<&'a Payload>,
    properties: &'a Properties,
    history: &'a [HistoryEntry],
}

/// What is published to the queue for review.
pub(crate) fn review_publication(
    queue: &str,
    task: &Task,
    id: EventId,
    cause: Cause<'_>,
    history: &[HistoryEntry],
    shape: Shape,
) -> Result<Publication, DecodeError> {
    let body = |payload| Body {
        task: id,
        message_id: &task.message_id,
        original_queue: &task.original_queue,
        reason: cause.reason,
        why: cause.why,
        error_reason: &task.error_reason,
        retry_count: task.retry_count,
        max_retries: task.max_retries,
        via: task.via,
        received_at: task.received_at,
        first_failed_at: task.first_failed_at,
        payload,
        properties: &task.properties,
        history,
    };
    let json = |payload| serde_json::to_vec(&body(payload)).unwrap_or_default();
    let (bytes, content_type) = match shape {
        Shape::Whole => {
            let whole = json(Some(&task.original_payload));
            if whole.len() > LARGEST_BODY {
                return review_publication(queue, task, id, cause, history, Shape::PayloadAsBody);
            }
            (whole, Some("application/json".to_owned()))
        }
        Shape::PayloadAsBody => {
            (task.original_payload.bytes()?.into_owned(), task.properties.content_type.clone())
        }
        Shape::WithoutPayload => (json(None), Some("application/json".to_owned())),
    };
    let text = |text: &str| HeaderValue::text(text.chars().take(LONGEST_TEXT).collect::<String>());
    let headers = [
        (header::TASK, HeaderValue::text(id.to_string())),
        (header::REVIEW_REASON, text(cause.reason.as_str())),
        (header::MESSAGE_ID, text(&task.message_id)),
        (header::ORIGINAL_QUEUE, text(&task.original_queue)),
        (header::ERROR_REASON, text(&task.error_reason)),
        (header::RETRY_COUNT, HeaderValue::I64(i64::from(task.retry_count))),
        (header::MAX_RETRIES, HeaderValue::I64(i64::from(task.max_retries))),
        (header::FIRST_FAILED_AT, HeaderValue::I64(task.first_failed_at.as_millis())),
    ];
    Ok(Publication {
        id: id.to_string(),
        once: once(task, id, "review"),
        queue: queue.to_owned(),
        body: bytes,
        properties: Properties {
            content_type,
            message_id: Some(id.to_string()),
            kind: Some(REVIEW_MESSAGE.to_owned()),
            delivery_mode: Some(PERSISTENT),
            headers: headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Properties::default()
        },
    })
}
