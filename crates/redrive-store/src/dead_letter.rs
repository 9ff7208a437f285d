//! The model of the dead-letter queue: dead letters, filters, pages, groups and redrives.

use std::fmt;
use std::str::FromStr;

use redrive_retry::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::event::{EventId, EventType, Metadata, ModelError, SubscriptionName};
use crate::query::{AttemptRow, PayloadOmitted};

/// A dead letter with everything needed to understand and redrive it; a summary has [`PayloadOmitted`] instead of the payload.
#[derive(Debug, Serialize)]
pub struct DeadLetter<P = Box<RawValue>> {
    /// The event.
    pub id: EventId,
    /// The event's type.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// The event's payload.
    pub payload: P,
    /// Metadata.
    pub metadata: Metadata,
    /// The time at which the event was published.
    pub created_at: Timestamp,
    /// The subscription of a dead delivery; `None` if the event is dead as a whole.
    pub subscription: Option<SubscriptionName>,
    /// Number of retries.
    pub retry_count: u32,
    /// The time at which the event or delivery was dead-lettered.
    pub dlq_at: Timestamp,
    /// The reason.
    pub reason: String,
    /// The error of every failed attempt, oldest first.
    pub errors: Vec<String>,
    /// Every failed attempt; only for a single event, not in lists.
    pub attempts: Vec<AttemptRow>,
    /// Cursor for [`DlqPage::after`], which continues the list behind this entry.
    #[serde(skip)]
    pub cursor: DlqCursor,
}

impl DeadLetter {
    /// Adds the attempts of one event to its dead letters, to each letter those of its subscription.
    pub(crate) fn add_attempts(letters: &mut [DeadLetter], attempts: &[AttemptRow]) {
        for letter in letters {
            let is_own = |attempt: &&AttemptRow| {
                letter.subscription.as_ref().is_none_or(|name| name.as_str() == attempt.subscription)
            };
            letter.attempts = attempts.iter().filter(is_own).cloned().collect();
        }
    }
}

impl DeadLetter<PayloadOmitted> {
    /// Adds the payload, which was read separately.
    pub fn with<P>(self, payload: P) -> DeadLetter<P> {
        let DeadLetter {
            id,
            event_type,
            payload: PayloadOmitted,
            metadata,
            created_at,
            subscription,
            retry_count,
            dlq_at,
            reason,
            errors,
            attempts,
            cursor,
        } = self;
        DeadLetter {
            id,
            event_type,
            payload,
            metadata,
            created_at,
            subscription,
            retry_count,
            dlq_at,
            reason,
            errors,
            attempts,
            cursor,
        }
    }
}

/// Selects dead letters. Every field that is set must match.
#[derive(Clone, Debug, Default)]
pub struct DlqFilter {
    /// Type of the event.
    pub event_type: Option<EventType>,
    /// Published at or after.
    pub since: Option<Timestamp>,
    /// Published before.
    pub until: Option<Timestamp>,
    /// Reason of the dead letter.
    pub reason: Option<String>,
    /// Text that an error contains.
    pub text: Option<String>,
    /// Fingerprint of the group.
    pub fingerprint: Option<String>,
    /// Subscription whose delivery is dead, or whose handler failed last of an event that is dead as a whole.
    pub subscription: Option<SubscriptionName>,
}

/// Selects a part of the list.
#[derive(Copy, Clone, Debug)]
pub struct DlqPage {
    /// Number of entries to skip. For deep pages use `after`.
    pub offset: u32,
    /// Maximum number of entries.
    pub limit: u32,
    /// Cursor of the entry to continue behind.
    pub after: Option<DlqCursor>,
}

impl Default for DlqPage {
    /// Selects the first hundred entries.
    fn default() -> Self {
        DlqPage { offset: 0, limit: 100, after: None }
    }
}

/// A position in the list of dead letters. Its text form can be stored and parsed again; the format is opaque.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DlqCursor {
    pub(crate) created_at: i64,
    pub(crate) event: i64,
    pub(crate) entry: i64,
}

impl DlqCursor {
    /// The position before the first entry.
    pub(crate) const START: DlqCursor = DlqCursor { created_at: i64::MAX, event: i64::MAX, entry: i64::MAX };

    /// Moves the cursor behind all dead letters of its event, including later ones.
    #[must_use]
    pub fn behind_event(self) -> Self {
        DlqCursor { entry: i64::MIN, ..self }
    }
}

impl fmt::Display for DlqCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.created_at, self.event, self.entry)
    }
}

impl FromStr for DlqCursor {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let invalid = || ModelError::Cursor(text.chars().take(64).collect());
        let parts: Vec<i64> =
            text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| invalid())?;
        let [created_at, event, entry] = parts[..] else { return Err(invalid()) };
        Ok(DlqCursor { created_at, event, entry })
    }
}

/// A group of dead letters with one target and one kind of error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DlqGroup {
    /// The subscription that failed, such as an endpoint; `None` if no attempt names one. [`DlqFilter::subscription`] selects it.
    pub target: Option<SubscriptionName>,
    /// The fingerprint of their errors.
    pub fingerprint: String,
    /// Number of dead letters.
    pub count: u64,
    /// Their event types, at most [`MAX_TYPES`](Self::MAX_TYPES).
    pub types: Vec<EventType>,
    /// The error of the example.
    pub example: String,
    /// The event of the last dead letter, as an example.
    pub example_id: EventId,
    /// When the first was dead-lettered.
    pub first_at: Timestamp,
    /// When the last was dead-lettered.
    pub last_at: Timestamp,
}

impl DlqGroup {
    /// Maximum number of event types that a group names.
    pub const MAX_TYPES: usize = 20;

    /// Converts the names of event types.
    pub(crate) fn types(mut names: Vec<String>) -> Vec<EventType> {
        names.sort_unstable();
        names.iter().take(Self::MAX_TYPES).map(|name| EventType::stored(name)).collect()
    }
}

/// Options of a redrive.
#[derive(Clone, Debug)]
pub struct Redrive {
    /// When the event is due.
    pub at: Timestamp,
    /// A new payload (JSON text); the original stays in the history.
    pub payload: Option<String>,
}

/// Maximum number of characters of an error that its fingerprint is made of.
const MAX_FINGERPRINT_CHARS: usize = 512;

/// Words before a number that say that it is an HTTP status or another code of the cause.
const CODE_WORDS: [&str; 5] = ["answered", "code", "http", "responded", "status"];

/// Reduces an error to its fingerprint: numbers, ids and quoted parts are replaced, so that errors of one kind are equal. An HTTP
/// status stays: "answered 500" and "answered 422" have different causes.
pub fn fingerprint(error: &str) -> String {
    let error: Vec<char> = error.chars().take(MAX_FINGERPRINT_CHARS).collect();
    let mut shape = String::new();
    let (mut in_quotes, mut at) = (None, 0);
    while let Some(&c) = error.get(at) {
        at += 1;
        match in_quotes {
            Some(quote) if c == quote => in_quotes = None,
            Some(_) => {}
            None if matches!(c, '"' | '`') => {
                in_quotes = Some(c);
                shape.push('…');
            }
            None if is_status_code(&shape, &error[at - 1..]) => {
                shape.extend(&error[at - 1..at + 2]);
                at += 2;
            }
            // A word with a digit is a number, an id or an address, which does not tell errors apart.
            None if c.is_ascii_digit() => {
                while shape
                    .ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '#'))
                {
                    shape.pop();
                }
                if !shape.ends_with('#') {
                    shape.push('#');
                }
            }
            None if c.is_ascii_alphanumeric() && shape.ends_with('#') => {}
            None => shape.push(c),
        }
    }
    shape
}

/// Returns whether a code of three digits follows, behind a word that announces it.
fn is_status_code(before: &str, rest: &[char]) -> bool {
    let [first @ '1'..='5', second, third, ..] = rest else { return false };
    let is_number = [first, second, third].into_iter().all(char::is_ascii_digit);
    let goes_on = |at: usize| rest.get(at).is_some_and(char::is_ascii_alphanumeric);
    let ends = !(goes_on(3) || rest.get(3).is_some_and(|c| matches!(c, '-' | '.' | ':')) && goes_on(4));
    let words = before.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let begins = words.len() < before.len() && !before.ends_with(['#', '-', '.']);
    let word = words.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    is_number && ends && begins && CODE_WORDS.iter().any(|known| known.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_one_kind_have_one_fingerprint() {
        let one = fingerprint("connect to 10.0.0.7:443 failed after 31 ms: order \"A-17\" not found");
        let two = fingerprint("connect to 10.1.2.3:8080 failed after 7 ms: order \"B\" not found");
        assert_eq!(one, two);
        assert_ne!(one, fingerprint("connection reset"));
        assert_eq!(
            fingerprint("event 0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19 is odd"),
            fingerprint("event 4e1b2d3c-aaaa-4bbb-8ccc-123456789abc is odd")
        );
    }

    #[test]
    fn an_http_status_is_part_of_the_fingerprint() {
        for text in [
            "the endpoint answered STATUS",
            "HTTP STATUS: bad",
            "status=STATUS",
            "status code (STATUS) of order 7",
        ] {
            let of = |status: &str| fingerprint(&text.replace("STATUS", status));
            assert_eq!(of("500"), of("500"));
            assert_ne!(of("500"), of("422"), "{text}");
        }
        assert_eq!(
            fingerprint("the endpoint answered 500 after 31 ms"),
            "the endpoint answered 500 after # ms"
        );
        assert_eq!(fingerprint("answered 1500 of 200 requests"), fingerprint("answered 7 of 31 requests"));
        assert_eq!(fingerprint("code 123-45"), fingerprint("code 678-90"));
    }
}
