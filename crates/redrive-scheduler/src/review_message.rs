//! Builds the message for the review queue: task, error and history as JSON, with a summary in its headers.

use base64::DecodeError;
use redrive_store::EventId;
use serde::Serialize;

use crate::header;
use crate::history::HistoryEntry;
use crate::payload::Payload;
use crate::properties::{HeaderValue, Headers, Properties};
use crate::republication::{NOT_RESTORED, PERSISTENT, once};
use crate::task::{Problem, ReviewReason, Task, Via};
use crate::transport::Publication;

/// AMQP `type` of review messages.
pub const REVIEW_MESSAGE: &str = "ReviewMessage";

/// Maximum JSON body; brokers accept 16 MiB by default. Larger messages keep their original body.
const MAX_BODY_BYTES: usize = 12 << 20;

/// Maximum characters of a header, because all headers together must fit into a frame.
const MAX_HEADER_CHARS: usize = 1000;

/// Maximum size of the original message's headers: half of a frame of default size.
const MAX_ORIGINAL_HEADERS: usize = 64 << 10;

/// Content of the review message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// JSON with the payload.
    Whole,
    /// Body and properties of the original message, with a summary in our headers.
    PayloadAsBody,
    /// JSON without the payload, which is in the store.
    WithoutPayload,
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

/// The publication for the review queue.
pub(crate) fn review_publication(
    queue: &str,
    task: &Task,
    id: EventId,
    problem: &Problem,
    history: &[HistoryEntry],
    shape: Shape,
) -> Result<Publication, DecodeError> {
    let body = |payload| Body {
        task: id,
        message_id: &task.message_id,
        original_queue: &task.original_queue,
        reason: problem.reason,
        why: &problem.why,
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
    let json_properties =
        || Properties { content_type: Some("application/json".to_owned()), ..Properties::default() };
    let (bytes, properties) = match shape {
        Shape::Whole => {
            let whole = json(Some(&task.original_payload));
            if whole.len() > MAX_BODY_BYTES {
                return review_publication(queue, task, id, problem, history, Shape::PayloadAsBody);
            }
            (whole, json_properties())
        }
        Shape::PayloadAsBody => (task.original_payload.bytes()?.into_owned(), carried(&task.properties)),
        Shape::WithoutPayload => (json(None), json_properties()),
    };
    let own = [
        (header::TASK, HeaderValue::text(id.to_string())),
        (header::REVIEW_REASON, text(problem.reason.as_str())),
        (header::MESSAGE_ID, text(&task.message_id)),
        (header::ORIGINAL_QUEUE, text(&task.original_queue)),
        (header::ERROR_REASON, text(&task.error_reason)),
        (header::RETRY_COUNT, HeaderValue::I64(i64::from(task.retry_count))),
        (header::MAX_RETRIES, HeaderValue::I64(i64::from(task.max_retries))),
        (header::FIRST_FAILED_AT, HeaderValue::I64(task.first_failed_at.as_millis())),
    ];
    let mut headers = properties.headers;
    headers.extend(own.map(|(name, value)| (name.to_owned(), value)));
    Ok(Publication {
        id: id.to_string(),
        once: once(task, id, "review"),
        queue: queue.to_owned(),
        body: bytes,
        properties: Properties {
            message_id: Some(id.to_string()),
            kind: Some(REVIEW_MESSAGE.to_owned()),
            delivery_mode: Some(PERSISTENT),
            headers,
            ..properties
        },
    })
}

fn text(text: &str) -> HeaderValue {
    HeaderValue::text(text.chars().take(MAX_HEADER_CHARS).collect::<String>())
}

/// The original properties, with as many headers as fit, small ones first. A header lists the names left out; user id and type move to
/// headers.
fn carried(properties: &Properties) -> Properties {
    let mut offered: Vec<_> =
        properties.headers.iter().filter(|(name, _)| !NOT_RESTORED.contains(&name.as_str())).collect();
    offered.sort_by_key(|(_, value)| value.size());
    let (mut headers, mut left_out) = (Headers::new(), Vec::new());
    let mut left = MAX_ORIGINAL_HEADERS;
    for (name, value) in offered {
        let size = name.len() + 1 + value.size();
        if size <= left {
            left -= size;
            headers.insert(name.clone(), value.clone());
        } else {
            left_out.push(name.as_str());
        }
    }
    let known = [(header::USER_ID, &properties.user_id), (header::TYPE, &properties.kind)];
    for (name, value) in known.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        headers.insert(name.to_owned(), text(value));
    }
    if !left_out.is_empty() {
        headers.insert(header::LEFT_OUT.to_owned(), text(&left_out.join(", ")));
    }
    Properties { expiration: None, user_id: None, headers, ..properties.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::headers_size;

    #[test]
    fn an_original_message_keeps_the_headers_that_fit() {
        let headers = [
            ("tenant", HeaderValue::text("7")),
            ("CC", HeaderValue::Array(vec![HeaderValue::text("other")])),
            ("wide", HeaderValue::text("x".repeat(MAX_ORIGINAL_HEADERS - 1000))),
            ("wider", HeaderValue::text("x".repeat(MAX_ORIGINAL_HEADERS - 500))),
        ];
        let properties = Properties {
            content_type: Some("text/plain".into()),
            correlation_id: Some("c".into()),
            reply_to: Some("answers".into()),
            app_id: Some("shop".into()),
            kind: Some("order".into()),
            user_id: Some("anna".into()),
            expiration: Some("1".into()),
            headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Properties::default()
        };
        let carried = carried(&properties);
        assert_eq!(
            (carried.content_type.as_deref(), carried.correlation_id.as_deref(), carried.reply_to.as_deref()),
            (Some("text/plain"), Some("c"), Some("answers"))
        );
        assert_eq!(
            (carried.app_id.as_deref(), carried.user_id, carried.expiration),
            (Some("shop"), None, None)
        );
        let names: Vec<_> = carried.headers.keys().map(String::as_str).collect();
        assert_eq!(names, [header::LEFT_OUT, header::TYPE, header::USER_ID, "tenant", "wide"]);
        assert_eq!(carried.headers[header::LEFT_OUT].as_text(), Some("wider"));
        assert!(headers_size(&carried.headers) < MAX_ORIGINAL_HEADERS + 4096);
    }
}
