//! Snooze: a handler asks to run later, without an attempt being charged.

use std::time::Duration;

use redrive_retry::{Failure, Timestamp};
/// The longest snooze.
const MAX_SNOOZE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The error with which a handler defers its event: the event comes again after this time, and no attempt is charged.
///
/// Meanwhile the delivery waits on disk and other handlers continue. For waits that are not failures: a maintenance window, a quota, a
/// precondition. A handler that always snoozes is called for ever.
///
/// ```
/// # use std::time::Duration;
/// use redrive::{Event, HandlerResult, Snooze};
///
/// async fn charge(event: Event) -> HandlerResult {
///     if bank_is_closed() {
///         return Err(Snooze::new(Duration::from_secs(600)).into());
///     }
///     // …
///     Ok(())
/// }
/// # fn bank_is_closed() -> bool { true }
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("snoozed for {} ms, without an attempt charged", wait.as_millis())]
pub struct Snooze {
    wait: Duration,
}

impl Snooze {
    /// Asks for the event again after `wait`, between a millisecond and seven days.
    pub fn new(wait: Duration) -> Self {
        Snooze { wait: wait.clamp(Duration::from_millis(1), MAX_SNOOZE) }
    }
}

/// When a delivery is due again whose failure is a snooze; `None` for any other failure.
pub(crate) fn snoozed_until(failure: &Failure, now: Timestamp) -> Option<Timestamp> {
    failure.find::<Snooze>().map(|snooze| now + snooze.wait)
}
