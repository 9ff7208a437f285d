//! The message as it goes back to its queue.

use base64::DecodeError;
use redrive_store::EventId;

use crate::header;
use crate::properties::{HeaderValue, Properties};
use crate::task::Task;
use crate::transport::Publication;

/// Two would send copies elsewhere; the others are counted anew by the queue it comes to.
pub(crate) const NOT_RESTORED: [&str; 4] = ["CC", "BCC", "x-delivery-count", "x-acquired-count"];

/// The broker keeps it on disk.
pub(crate) const PERSISTENT: u8 = 2;

/// What is published for a task: the message as it was, and who it is.
///
/// Its expiration is not restored, because it would be that of a message that has failed long ago. Its user id is not, because
/// the broker would refuse it from anybody else; a copy stands in a header.
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

/// What a task is published as. What a person sends once more is not what was published before.
pub(crate) fn once(task: &Task, id: EventId, purpose: &str) -> String {
    match &task.by_hand {
        None => format!("{id}.{purpose}"),
        Some(by_hand) => format!("{id}.{purpose}.{}", by_hand.at.as_millis()),
    }
}
