//! The dead-letter queue: what is kept, how it is looked at, and the way back.

use std::fmt;
use std::str::FromStr;

use redrive_retry::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::event::{EventId, EventType, Metadata, ModelError, SubscriptionName};
use crate::query::{AttemptRow, Unread};

/// A dead event, whole: everything needed to understand and redrive it; but for the payload, if that is [`Unread`].
#[derive(Debug, Serialize)]
pub struct DeadLetter<P = Box<RawValue>> {
    /// The event.
    pub id: EventId,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// Its payload.
    pub payload: P,
    /// Additional facts.
    pub metadata: Metadata,
    /// When it was published.
    pub created_at: Timestamp,
    /// The subscription that gave up, if each is tracked on its own.
    pub subscription: Option<SubscriptionName>,
    /// How often it was retried.
    pub retry_count: u32,
    /// When it was given up.
    pub dlq_at: Timestamp,
    /// Why.
    pub reason: String,
    /// Every error of every attempt.
    pub errors: Vec<String>,
    /// Every failed attempt; only for a single event, not in lists.
    pub attempts: Vec<AttemptRow>,
    /// For the next page: pass it to [`DlqPage::after`].
    #[serde(skip)]
    pub cursor: DlqCursor,
}

impl DeadLetter<Unread> {
    /// With the payload, read later.
    pub fn with<P>(self, payload: P) -> DeadLetter<P> {
        let DeadLetter {
            id,
            event_type,
            payload: Unread,
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

/// Which dead events are meant. Everything that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct DlqFilter {
    /// Of this type.
    pub event_type: Option<EventType>,
    /// Published at or after.
    pub since: Option<Timestamp>,
    /// Published before.
    pub until: Option<Timestamp>,
    /// For this reason.
    pub reason: Option<String>,
    /// With this text in an error.
    pub text: Option<String>,
    /// In this group.
    pub fingerprint: Option<String>,
    /// Given up by this subscription, which is tracked on its own.
    pub subscription: Option<SubscriptionName>,
}

/// Which part of the list.
#[derive(Copy, Clone, Debug)]
pub struct DlqPage {
    /// How many to skip. For deep pages use `after`.
    pub offset: u32,
    /// How many at most.
    pub limit: u32,
    /// Continue after the entry with this cursor.
    pub after: Option<DlqCursor>,
}

impl Default for DlqPage {
    /// The first hundred.
    fn default() -> Self {
        DlqPage { offset: 0, limit: 100, after: None }
    }
}

/// A place in the list of dead events. Its text may be kept and given back; what is in it is nobody's business.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DlqCursor {
    pub(crate) created_at: i64,
    pub(crate) event: i64,
    pub(crate) entry: i64,
}

impl DlqCursor {
    /// Before all others.
    pub(crate) const START: DlqCursor = DlqCursor { created_at: i64::MAX, event: i64::MAX, entry: i64::MAX };

    /// Behind everything of the same event, also what enters the queue of it later.
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
        let invalid = || ModelError::Cursor { text: text.chars().take(64).collect() };
        let parts: Vec<i64> =
            text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| invalid())?;
        let [created_at, event, entry] = parts[..] else { return Err(invalid()) };
        Ok(DlqCursor { created_at, event, entry })
    }
}

/// Dead events with the same kind of error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DlqGroup {
    /// What they have in common.
    pub fingerprint: String,
    /// How many.
    pub count: u64,
    /// One error as an example.
    pub example: String,
    /// When the first one died.
    pub first_at: Timestamp,
    /// When the last one died.
    pub last_at: Timestamp,
}

/// How a dead event goes back.
#[derive(Clone, Debug)]
pub struct Redrive {
    /// When.
    pub at: Timestamp,
    /// With another payload (JSON text); the original is kept in the history.
    pub payload: Option<String>,
}

/// What of a dead event goes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meant {
    /// All of it, as if it were sent back by its id.
    All,
    /// What these gave up; what else was given up of it stays so.
    Only(Vec<SubscriptionName>),
}

impl Meant {
    /// Of the letters of one event: who gave up, and whether that letter is meant. One without a name is for the whole event.
    pub(crate) fn of(letters: Vec<(Option<SubscriptionName>, bool)>) -> Self {
        let is_whole = letters.iter().any(|(by, is_meant)| *is_meant && by.is_none());
        if is_whole || letters.iter().all(|(_, is_meant)| *is_meant) {
            return Meant::All;
        }
        Meant::Only(letters.into_iter().filter(|(_, is_meant)| *is_meant).filter_map(|(by, _)| by).collect())
    }
}

/// What an error has in common with its kin: numbers, ids and quoted parts are taken out.
pub fn fingerprint(error: &str) -> String {
    let mut shape = String::new();
    let mut in_quotes = None;
    for c in error.chars().take(512) {
        match in_quotes {
            Some(quote) if c == quote => in_quotes = None,
            Some(_) => {}
            None if matches!(c, '"' | '`') => {
                in_quotes = Some(c);
                shape.push('…');
            }
            // A word with a digit in it is a number, an id, an address: not what tells errors apart.
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
}
