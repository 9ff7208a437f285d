//! What a handler says that cannot work on an event at the moment.

use std::time::Duration;

use redrive_retry::{Failure, Timestamp};
use redrive_store::HELD;

use crate::pull::PutBack;

/// Put off for longer than this is not meant.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A handler that returns this as its error has not begun: the event comes again after this time, and no attempt is charged. It is on
/// disk meanwhile, and the handlers of others go on.
///
/// For what is to wait without being anybody's failure: a window for maintenance, a quota, something that must have happened before. Whoever
/// always says so is asked for ever.
///
/// ```
/// # use std::time::Duration;
/// # use redrive::{BoxError, Event, NotNow};
/// async fn charge(event: Event) -> Result<(), BoxError> {
///     if bank_is_closed() {
///         return Err(NotNow::for_the_next(Duration::from_secs(600)).into());
///     }
///     // …
///     Ok(())
/// }
/// # fn bank_is_closed() -> bool { true }
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("put off for {} ms, without being charged", wait.as_millis())]
pub struct NotNow {
    wait: Duration,
}

impl NotNow {
    /// Not before this much time has passed: a millisecond to seven days.
    pub fn for_the_next(wait: Duration) -> Self {
        NotNow { wait: wait.clamp(Duration::from_millis(1), LONGEST) }
    }
}

/// Until when a failure that is none puts something off.
pub(crate) fn put_off_until(failure: &Failure, now: Timestamp) -> Option<Timestamp> {
    if failure.find::<PutBack>().is_some() {
        return Some(HELD);
    }
    failure.find::<NotNow>().map(|not_now| now + not_now.wait)
}
