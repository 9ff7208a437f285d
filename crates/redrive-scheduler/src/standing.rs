//! How far a task is: it is owed to the courier alone, whoever else works on the same database.

use redrive_retry::Timestamp;
use redrive_store::{DeliveryRow, EventDetail, EventStatus};

use crate::task::COURIER;

/// How far a task is.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) status: EventStatus,
    /// When it is due, if it waits.
    pub(crate) due_at: Option<Timestamp>,
    /// How many attempts to bring it to the broker have failed.
    pub(crate) failed: u32,
    pub(crate) errors: Vec<String>,
}

impl Standing {
    pub(crate) fn of(event: &EventDetail) -> Self {
        let owed = |delivery: &&DeliveryRow| delivery.subscription.as_str() == COURIER;
        match event.deliveries.iter().find(owed) {
            Some(delivery) => Standing {
                status: delivery.status,
                due_at: delivery.due_at,
                failed: delivery.retry_count,
                errors: delivery.errors.clone(),
            },
            None => Standing {
                status: event.status,
                due_at: event.due_at,
                failed: event.retry_count,
                errors: event.errors.clone(),
            },
        }
    }

    /// For its time, the first one or another.
    pub(crate) fn is_waiting(&self) -> bool {
        self.due_at.is_some() && !self.is_over()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.status, EventStatus::Done | EventStatus::Dlq)
    }
}
