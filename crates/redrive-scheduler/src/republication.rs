//! Builds the message that is republished to its original queue.

use base64::DecodeError;
use redrive_store::EventId;

use crate::header;
use crate::properties::{HeaderValue, Properties};
use crate::task::Task;
use crate::transport::Publication;

/// Headers that are dropped: `CC` and `BCC` would send copies to other queues; the queue maintains the counts itself.
pub(crate) const NOT_RESTORED: [&str; 4] = ["CC", "BCC", "x-delivery-count", "x-acquired-count"];

/// AMQP delivery mode: stored on disk.
pub(crate) const PERSISTENT: u8 = 2;

/// The original message with the scheduler's headers.
///
/// The expiration is dropped, because it may have passed long ago. The user id is dropped, because the broker accepts only that of the
/// connection; a header keeps it.
pub(crate) fn republication(task: &Task, id: EventId) -> Result<Publication, DecodeError> {
    let mut properties = Properties {
        expiration: None,
        user_id: None,
        delivery_mode: Some(PERSISTENT),
        ..task.properties.clone()
    };
    for name in NOT_RESTORED {
        properties.headers.remove(name);
    }
    properties.message_id.get_or_insert_with(|| task.message_id.clone());
    if let Some(user) = &task.properties.user_id {
        properties.headers.insert(header::USER_ID.to_owned(), HeaderValue::text(user));
    }
    let count = |count: u32| HeaderValue::I64(i64::from(count));
    for (name, value) in [
        (header::RETRY_COUNT, count(task.retry_count.saturating_add(1))),
        (header::MAX_RETRIES, count(task.max_retries)),
        (header::MESSAGE_ID, HeaderValue::text(&task.message_id)),
        (header::FIRST_FAILED_AT, HeaderValue::I64(task.first_failed_at.as_millis())),
        (header::TASK, HeaderValue::text(id.to_string())),
        (header::ORIGINAL_QUEUE, HeaderValue::text(&task.original_queue)),
    ] {
        properties.headers.insert(name.to_owned(), value);
    }
    Ok(Publication {
        id: id.to_string(),
        once: once(task, id, "retry"),
        queue: task.original_queue.clone(),
        body: task.original_payload.bytes()?.into_owned(),
        properties,
    })
}

/// Deduplication id of a publication. A release from review has its own, so that the broker does not drop it as a duplicate.
pub(crate) fn once(task: &Task, id: EventId, purpose: &str) -> String {
    match &task.by_hand {
        None => format!("{id}.{purpose}"),
        Some(by_hand) => format!("{id}.{purpose}.{}", by_hand.at.as_millis()),
    }
}
