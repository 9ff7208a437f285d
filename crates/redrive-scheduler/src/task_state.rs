//! State of a task: status and due time of its delivery to the republisher.

use redrive_retry::Timestamp;
use redrive_store::{DeliveryRow, EventDetail, EventStatus};

use crate::task::REPUBLISHER;

/// State of a task's delivery, or of its event while there is no delivery yet.
#[derive(Clone, Debug)]
pub(crate) struct TaskState {
    pub(crate) status: EventStatus,
    /// Due time, while the task waits.
    pub(crate) due_at: Option<Timestamp>,
    /// Number of failed attempts to publish it.
    pub(crate) failed: u32,
    pub(crate) errors: Vec<String>,
}

impl TaskState {
    pub(crate) fn of(event: &EventDetail) -> Self {
        let is_republisher = |delivery: &&DeliveryRow| delivery.subscription.as_str() == REPUBLISHER;
        match event.deliveries.iter().find(is_republisher) {
            Some(delivery) => TaskState {
                status: delivery.status,
                due_at: delivery.due_at,
                failed: delivery.retry_count,
                errors: delivery.errors.clone(),
            },
            None => TaskState {
                status: event.status,
                due_at: event.due_at,
                failed: event.retry_count,
                errors: event.errors.clone(),
            },
        }
    }

    /// Whether the task waits for its due time, at the first attempt or a later one.
    pub(crate) fn is_waiting(&self) -> bool {
        self.due_at.is_some() && !matches!(self.status, EventStatus::Done | EventStatus::Dlq)
    }
}
