//! Converts stored events into those of the API.

use redrive::events::{AttemptRow, DeliveryRow, EventDetail, EventStatus};
use redrive_api::events::{Attempt, Delivery, Event, EventSummary};
use redrive_api::time::Time;
use serde_json::value::RawValue;

pub(crate) fn summary<P>(event: EventDetail<P>) -> EventSummary {
    EventSummary {
        id: *event.id.as_uuid(),
        event_type: event.event_type.to_string(),
        status: status(event.status),
        metadata: event.metadata,
        retry_count: event.retry_count,
        created_at: event.created_at.into(),
        updated_at: event.updated_at.into(),
        due_at: event.due_at.map(Time),
        errors: event.errors,
    }
}

pub(crate) fn event(event: EventDetail) -> Event {
    Event {
        id: *event.id.as_uuid(),
        event_type: event.event_type.to_string(),
        status: status(event.status),
        metadata: event.metadata,
        retry_count: event.retry_count,
        created_at: event.created_at.into(),
        updated_at: event.updated_at.into(),
        due_at: event.due_at.map(Time),
        errors: event.errors,
        payload: event.payload,
        deliveries: event.deliveries.into_iter().map(delivery).collect(),
        attempts: event.attempts.into_iter().map(attempt).collect(),
    }
}

fn delivery(row: DeliveryRow) -> Delivery {
    Delivery {
        subscription: row.subscription.to_string(),
        status: status(row.status),
        retry_count: row.retry_count,
        due_at: row.due_at.map(Time),
        errors: row.errors,
    }
}

pub(crate) fn attempt(row: AttemptRow) -> Attempt {
    Attempt {
        attempt: row.attempt,
        subscription: row.subscription,
        started_at: row.started_at.into(),
        duration_ms: row.duration_ms,
        class: row.class.map(|class| class.to_string()),
        delay_ms: row.delay_ms,
        error: row.error,
        record: row.record.and_then(|record| RawValue::from_string(record.0).ok()),
        detail: row.detail.and_then(|detail| RawValue::from_string(detail.0).ok()),
    }
}

fn status(status: EventStatus) -> redrive_api::events::EventStatus {
    status.to_string().into()
}
