//! A new event, prepared for its row.

use std::collections::HashSet;
use std::sync::Arc;

use redrive_retry::Timestamp;

use super::retry_task::RetryTask;
use crate::event::{NewEvent, Routing, StoredEvent};

/// An event that is ready to be written. Its columns are serialised before the writer's transaction begins.
#[derive(Debug)]
pub(crate) struct EventRow {
    pub(crate) event: Arc<StoredEvent>,
    /// Names each subscription once.
    pub(crate) to: Routing,
    pub(crate) due_at: Timestamp,
    pub(crate) is_scheduled: bool,
    pub(crate) metadata: Option<String>,
    pub(crate) retry: Option<String>,
    /// The row of the retry queue, if the event is a task of the retry scheduler, to which it is addressed.
    pub(crate) task: Option<RetryTask>,
}

impl EventRow {
    /// Returns whether the event is due when it is published.
    pub(crate) fn is_due(&self) -> bool {
        self.due_at <= self.event.created_at
    }

    /// Returns the approximate size of the row in bytes.
    #[cfg(feature = "postgres")]
    pub(crate) fn size(&self) -> usize {
        self.event.payload.len() + self.metadata.as_ref().map_or(0, String::len) + 256
    }

    /// Returns whether the event is tracked as a whole.
    pub(crate) fn is_whole(&self) -> bool {
        self.to != Routing::None && self.to.subscriptions().is_empty()
    }
}

impl From<NewEvent> for EventRow {
    fn from(new: NewEvent) -> Self {
        let NewEvent { id, event_type, payload, metadata, created_at, due_at, is_scheduled, retry, mut to } =
            new;
        if let Routing::Each(names) = &mut to
            && names.len() > 1
        {
            let mut seen = HashSet::new();
            names.retain(|name| seen.insert(name.clone()));
        }
        EventRow {
            metadata: (!metadata.is_empty()).then(|| json(&metadata)),
            retry: retry.as_ref().map(json),
            task: if to.subscriptions().is_empty() {
                None
            } else {
                RetryTask::read(event_type.as_str(), &payload)
            },
            event: Arc::new(StoredEvent { id, event_type, payload, metadata, created_at, retry }),
            to,
            due_at,
            is_scheduled,
        }
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("maps of text and numbers always serialise")
}
