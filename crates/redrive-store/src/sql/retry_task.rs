//! The row of the retry queue that the task of a failed broker message gives.

use serde::Deserialize;

/// A broker message that failed, as the retry queue shows it. Its other columns are read from the event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RetryTask {
    pub(crate) message_id: String,
    pub(crate) original_queue: String,
    /// Number of retries before this failure.
    pub(crate) retries: i32,
    /// Whether a review has discarded the message.
    pub(crate) discarded: bool,
}

/// The columns of the unique index are limited, because an index entry has a limit.
const MAX_NAME_BYTES: usize = 1000;

/// The fields of a task that the retry queue needs. The other ones are skipped and not checked.
#[derive(Deserialize)]
struct Fields {
    message_id: String,
    original_queue: String,
    retry_count: i64,
    #[serde(rename = "next_retry_at_ms")]
    _next_retry_at_ms: i64,
    by_hand: Option<serde_json::Value>,
}

impl RetryTask {
    /// Reads the task in the payload of an event. Anyone may publish an event of this type: a payload without these fields gives no row.
    pub(crate) fn read(event_type: &str, payload: &str) -> Option<Self> {
        if event_type != "retry.task" || !payload.starts_with(r#"{"message_id":"#) {
            return None;
        }
        let Fields { message_id, original_queue, retry_count, by_hand, .. } =
            serde_json::from_str(payload).ok()?;
        let text = |text: String| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
        let (message_id, original_queue) = (text(message_id), text(original_queue));
        if retry_count < 0 || message_id.len() > MAX_NAME_BYTES || original_queue.len() > MAX_NAME_BYTES {
            return None;
        }
        let discarded = by_hand.is_some_and(|by_hand| by_hand["decision"] == "discarded");
        let retries = i32::try_from(retry_count).unwrap_or(i32::MAX);
        Some(RetryTask { message_id, original_queue, retries, discarded })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is a failed test
mod tests {
    use super::*;

    fn read(message_id: &str, rest: &str) -> Option<RetryTask> {
        let task = format!(
            r#"{{"message_id":"{message_id}","original_queue":"orders","next_retry_at_ms":7,"error_reason":"x"{rest}}}"#
        );
        RetryTask::read("retry.task", &task)
    }

    #[test]
    fn the_fields_of_a_task_are_read() {
        let task = |message_id: &str, retries, discarded| RetryTask {
            message_id: message_id.to_owned(),
            original_queue: "orders".to_owned(),
            retries,
            discarded,
        };
        assert_eq!(read("m", r#","retry_count":2"#), Some(task("m", 2, false)));
        assert_eq!(read("m", r#","retry_count":3000000000"#), Some(task("m", i32::MAX, false)));
        assert_eq!(read(r"a\u0000b", r#","retry_count":0"#), Some(task("a\u{fffd}b", 0, false)));
        let discarded = r#","retry_count":0,"by_hand":{"decision":"discarded","by":"anna"}"#;
        assert_eq!(read("m", discarded), Some(task("m", 0, true)));
        let retried = r#","retry_count":0,"by_hand":{"decision":"retried"}"#;
        assert_eq!(read("m", retried), Some(task("m", 0, false)));
    }

    #[test]
    fn a_payload_that_is_no_task_gives_no_row() {
        for rest in ["", r#","retry_count":-1"#, r#","retry_count":"2""#, r#","retry_count":1.5"#] {
            assert_eq!(read("m", rest), None, "{rest}");
        }
        assert_eq!(read(&"m".repeat(1001), r#","retry_count":0"#), None);
        assert_eq!(RetryTask::read("retry.task", "{}"), None);
        let task = r#"{"message_id":"m","original_queue":"q","next_retry_at_ms":7,"retry_count":0}"#;
        assert!(RetryTask::read("retry.task", task).is_some());
        assert_eq!(RetryTask::read("order.created", task), None, "an event of another program");
    }
}
