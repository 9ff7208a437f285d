//! How an event is settled: the result of a handler as an ack or a nack.

use std::fmt::Write as _;
use std::time::Duration;

use redrive_retry::{Failure, FailureClass};

use crate::subscriptions::NackOutcome;

/// Longest delay of a nack: a day.
const MAX_DELAY: Duration = Duration::from_secs(86_400);

/// Longest reason of a nack, in characters.
const MAX_REASON_CHARS: usize = 4096;

/// The error with which a handler asks for its event again later, without an attempt being charged.
///
/// For waits that are not failures: a quota, a maintenance window, a precondition.
///
/// ```
/// use redrive_api::worker::{HandlerResult, Snooze};
/// use std::time::Duration;
///
/// fn check(bank_is_closed: bool) -> HandlerResult {
///     if bank_is_closed {
///         return Err(Snooze::new(Duration::from_secs(600)).into());
///     }
///     Ok(())
/// }
/// # assert!(check(false).is_ok() && check(true).is_err());
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("snoozed for {} ms, without an attempt charged", wait.as_millis())]
pub struct Snooze {
    wait: Duration,
}

impl Snooze {
    /// Asks for the event again after `wait`, between a millisecond and a day.
    pub fn new(wait: Duration) -> Self {
        Snooze { wait: wait.clamp(Duration::from_millis(1), MAX_DELAY) }
    }
}

/// How an event is settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Settlement {
    Ack,
    Nack { outcome: NackOutcome, delay_ms: Option<u64>, reason: Option<String> },
}

impl Settlement {
    /// Gives an event back whose handler did not run to its end; no attempt is charged.
    pub(super) const RELEASE: Settlement =
        Settlement::Nack { outcome: NackOutcome::Snooze, delay_ms: Some(1), reason: None };

    /// Settles an event whose handler failed. `asked` is the wait that the worker's settings ask for.
    pub(super) fn of_failure(failure: &Failure, asked: Option<Duration>) -> Self {
        if let Some(Snooze { wait }) = failure.find::<Snooze>() {
            let delay_ms = Some(millis(*wait));
            return Settlement::Nack { outcome: NackOutcome::Snooze, delay_ms, reason: None };
        }
        let reason = Some(reason_of(failure));
        match failure.class() {
            Some(FailureClass::Permanent) => {
                Settlement::Nack { outcome: NackOutcome::Permanent, delay_ms: None, reason }
            }
            class => {
                let wait = class.and_then(FailureClass::requested_wait).or(asked);
                Settlement::Nack { outcome: NackOutcome::Failed, delay_ms: wait.map(millis), reason }
            }
        }
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.min(MAX_DELAY).as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Describes an error with its sources, at most [`MAX_REASON_CHARS`] characters.
fn reason_of(failure: &Failure) -> String {
    let mut reason = String::new();
    let mut last = String::new();
    for error in failure.chain() {
        let text = error.to_string();
        // An I/O error has the text of the error inside it.
        if !last.contains(&text) {
            let joint = if reason.is_empty() { "" } else { "\ncaused by: " };
            let _ = write!(reason, "{joint}{text}"); // writing to a string cannot fail
        }
        last = text;
    }
    match reason.char_indices().nth(MAX_REASON_CHARS - 1) {
        Some((end, last)) if end + last.len_utf8() < reason.len() => format!("{}…", &reason[..end]),
        _ => reason,
    }
}

#[cfg(test)]
mod tests {
    use redrive_retry::ClassifyError as _;

    use super::*;

    fn nack(failure: &Failure, asked: Option<Duration>) -> (NackOutcome, Option<u64>, Option<String>) {
        match Settlement::of_failure(failure, asked) {
            Settlement::Nack { outcome, delay_ms, reason } => (outcome, delay_ms, reason),
            Settlement::Ack => panic!("a failure is not acked"),
        }
    }

    #[test]
    fn marks_decide_how_an_event_is_settled() {
        let second = Duration::from_secs(1);
        let text = |text: &str| Some(text.to_owned());
        let plain = Failure::new("no ink");
        assert_eq!(nack(&plain, None), (NackOutcome::Failed, None, text("no ink")));
        assert_eq!(nack(&plain, Some(second)), (NackOutcome::Failed, Some(1000), text("no ink")));
        let permanent = "no such customer".permanent();
        assert_eq!(nack(&permanent, Some(second)), (NackOutcome::Permanent, None, text("no such customer")));
        let later = "busy".retry_after(Duration::from_secs(30));
        assert_eq!(nack(&later, Some(second)), (NackOutcome::Failed, Some(30_000), text("busy")));
        let snooze = Failure::new(Snooze::new(Duration::ZERO));
        assert_eq!(nack(&snooze, Some(second)), (NackOutcome::Snooze, Some(1), None));
        let long = Failure::new("x".retry_after(Duration::from_secs(1_000_000)));
        assert_eq!(nack(&long, None).1, Some(86_400_000));
    }

    #[test]
    fn a_reason_has_the_sources_of_the_error_and_is_cut() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot charge the card")]
        struct Charge(#[source] std::io::Error);
        let failure = Failure::new(Charge(std::io::Error::other("connection reset")));
        assert_eq!(reason_of(&failure), "cannot charge the card\ncaused by: connection reset");
        let exact = "é".repeat(MAX_REASON_CHARS);
        assert_eq!(reason_of(&Failure::new(exact.clone())), exact);
        let cut = reason_of(&Failure::new(format!("{exact}x")));
        assert_eq!((cut.chars().count(), cut.chars().last()), (MAX_REASON_CHARS, Some('…')));
    }
}
