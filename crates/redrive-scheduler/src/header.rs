//! Names of the message headers that the scheduler sets and reads. None begins with `x-`, which is the broker's prefix.

use crate::properties::Properties;

/// Number of retries of the message, this one included.
pub const RETRY_COUNT: &str = "redrive-retry-count";
/// Maximum number of retries.
pub const MAX_RETRIES: &str = "redrive-max-retries";
/// Id of the message, the same over all of its failures.
pub const MESSAGE_ID: &str = "redrive-message-id";
/// Id of the task, the same over all attempts to publish it.
pub const TASK: &str = "redrive-task";
/// Time of the first failure, as Unix time in milliseconds.
pub const FIRST_FAILED_AT: &str = "redrive-first-failed-at";
/// User id of the original message, as validated by the broker.
pub const USER_ID: &str = "redrive-user-id";
/// In review: the reason.
pub const REVIEW_REASON: &str = "redrive-review-reason";
/// Original queue. The other headers are valid for this queue only, not where a consumer copied them to another message.
pub const ORIGINAL_QUEUE: &str = "redrive-original-queue";
/// In review: the last error.
pub const ERROR_REASON: &str = "redrive-error-reason";
/// In review, with the original body: names of the headers that did not fit.
pub const LEFT_OUT: &str = "redrive-left-out";
/// On a `RetryMessage`: content type of the original message.
pub const CONTENT_TYPE: &str = "redrive-content-type";
/// On a `RetryMessage`: content encoding of the original message.
pub const CONTENT_ENCODING: &str = "redrive-content-encoding";
/// On a `RetryMessage`: type of the original message.
pub const TYPE: &str = "redrive-type";

/// Removes a header and returns its text.
pub(crate) fn take_text(properties: &mut Properties, name: &str) -> Option<String> {
    let text = properties.text(name)?.to_owned();
    properties.headers.remove(name);
    Some(text)
}
