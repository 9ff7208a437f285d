//! [`StreamUpdate`]: a message for the clients of the stream.

use redrive::EventType;

/// A message for the clients of the stream.
#[derive(Debug)]
pub(crate) enum StreamUpdate {
    /// An event was published or ended.
    Event {
        /// `published`, `done` or `dead`.
        what: &'static str,
        event_type: EventType,
        id: String,
        /// JSON.
        data: String,
    },
    /// Some events are left out.
    Skipped,
}
