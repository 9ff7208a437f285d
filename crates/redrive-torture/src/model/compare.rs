//! Compares events of the real bus with the model's.

use redrive::events::{AttemptRow, EventDetail, EventStatus};
use redrive::retry::Timestamp;

use super::plain::{Delivery, PlainEvent, State, at};

/// Describes the first difference, if any.
pub(super) fn difference(shown: &EventDetail, event: &PlainEvent) -> Option<String> {
    let whole = &event.whole;
    let mut found = Found::default();
    found.note("status", &shown.status, &whole.state.shown());
    let (mut errors, mut failed) = (shown.errors.clone(), errors_of(event));
    // Attempts that ended at one instant have no order.
    errors.sort_unstable();
    failed.sort_unstable();
    found.note("retry_count", &(shown.retry_count as usize), &failed.len());
    found.note("errors", &errors, &failed);
    found.note("due_at", &shown.due_at, &due(whole));
    found.note("updated_at", &shown.updated_at, &at(whole.changed_at));
    found.note("created_at", &shown.created_at, &at(event.created_at));
    found.note("payload", &shown.payload.get(), &event.payload.as_str());
    found.note("deliveries", &shown.deliveries.len(), &event.deliveries.len());
    for delivery in &shown.deliveries {
        let name = delivery.subscription.as_str();
        let Some(expected) = event.deliveries.get(name) else {
            found.0.push(format!("{name} is owed something"));
            continue;
        };
        found.note(name, &delivery.status, &expected.state.shown());
        found.note(name, &delivery.retry_count, &expected.retry_count);
        found.note(name, &delivery.errors, &expected.errors);
        found.note(name, &delivery.due_at, &due(expected));
    }
    let mut attempts: Vec<_> = shown.attempts.iter().map(attempt).collect();
    let mut expected: Vec<_> = event
        .attempts_made
        .iter()
        .map(|made| {
            let delay = made.delay_ms.unsigned_abs();
            let (subscription, error) = (made.subscription.as_str(), made.error.as_str());
            (made.number, subscription, at(made.started_at), made.class.to_owned(), delay, error)
        })
        .collect();
    // Attempts that ended at one instant have no order.
    attempts.sort_unstable();
    expected.sort_unstable();
    found.note("attempts", &attempts, &expected);
    (!found.0.is_empty()).then(|| found.0.join("; "))
}

/// The errors of every failed attempt of the event and of its deliveries.
fn errors_of(event: &PlainEvent) -> Vec<String> {
    event.failed.iter().map(|(_, error)| error.clone()).collect()
}

/// The event's past with one more claim, if that is what the bus shows: it was claimed unobserved.
pub(super) fn taken_up(shown: &EventDetail, event: &PlainEvent, now: i64) -> PlainEvent {
    let mut event = event.clone();
    if is_taken(shown.status, shown.due_at, &event.whole, now) {
        (event.whole.state, event.whole.changed_at) = (State::Running, now);
    }
    for delivery in &shown.deliveries {
        if let Some(expected) = event.deliveries.get_mut(delivery.subscription.as_str())
            && is_taken(delivery.status, delivery.due_at, expected, now)
        {
            (expected.state, expected.changed_at) = (State::Running, now);
            if event.whole.state == State::Redriven {
                event.whole.state = State::Delivering;
            }
        }
    }
    event
}

fn is_taken(status: EventStatus, due_at: Option<Timestamp>, expected: &Delivery, now: i64) -> bool {
    let could_be = matches!(expected.state, State::Suspect | State::Pending | State::Waiting);
    let is_running = status == EventStatus::Processing && due_at.is_none();
    is_running && could_be && expected.due.is_some_and(|due| due <= now)
}

/// A running delivery shows no due time.
fn due(expected: &Delivery) -> Option<Timestamp> {
    expected.due.filter(|_| expected.state != State::Running).map(at)
}

fn attempt(row: &AttemptRow) -> (u32, &str, Timestamp, String, u64, &str) {
    (
        row.attempt,
        row.subscription.as_str(),
        row.started_at,
        row.class.map(|class| class.to_string()).unwrap_or_default(),
        row.delay_ms,
        row.error.as_str(),
    )
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn note<T: PartialEq<U> + std::fmt::Debug, U: std::fmt::Debug>(
        &mut self,
        what: &str,
        real: &T,
        model: &U,
    ) {
        if real != model {
            self.0.push(format!("{what} is {real:?}, expected {model:?}"));
        }
    }
}
