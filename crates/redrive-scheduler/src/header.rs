//! The headers that the scheduler sets and reads. None begins with `x-`, which is the broker's.

use crate::properties::Properties;

/// How many retries the message has had, this one included.
pub const RETRY_COUNT: &str = "redrive-retry-count";
/// How many it may have.
pub const MAX_RETRIES: &str = "redrive-max-retries";
/// The message's id, over all of its failures.
pub const MESSAGE_ID: &str = "redrive-message-id";
/// The task: the same over all attempts to publish it.
pub const TASK: &str = "redrive-task";
/// When it failed first, as Unix time in milliseconds.
pub const FIRST_FAILED_AT: &str = "redrive-first-failed-at";
/// Who had sent it, proved by the broker then.
pub const USER_ID: &str = "redrive-user-id";
/// For review: why it is there.
pub const REVIEW_REASON: &str = "redrive-review-reason";
/// Where it belongs: the other headers speak of this queue, and of no other to which somebody has copied them.
pub const ORIGINAL_QUEUE: &str = "redrive-original-queue";
/// For review: why it failed last.
pub const ERROR_REASON: &str = "redrive-error-reason";
/// For review, where the body is that of the message: which of its headers had no room.
pub const LEFT_OUT: &str = "redrive-left-out";
/// On a `RetryMessage`: the content type of the message inside.
pub const CONTENT_TYPE: &str = "redrive-content-type";
/// On a `RetryMessage`: the content encoding of the message inside.
pub const CONTENT_ENCODING: &str = "redrive-content-encoding";
/// On a `RetryMessage`: the type of the message inside.
pub const TYPE: &str = "redrive-type";

/// Takes a text out of the headers.
pub(crate) fn take_text(properties: &mut Properties, name: &str) -> Option<String> {
    let text = properties.text(name)?.to_owned();
    properties.headers.remove(name);
    Some(text)
}
