//! Format of the bucket's entries.
//!
//! Times are durations since the server's stamp of the entry.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::message::StreamMessage;
use redrive_retry::Timestamp;
use redrive_retry::idempotency::{ABANDONED_AFTER, Fingerprint, IdempotencyRecord, KeyState, OwnerToken};
use serde::{Deserialize, Serialize};

use crate::error::NatsError;

/// Version of the format.
const VERSION: u32 = 1;

/// State of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    InProgress,
    /// Result and metadata as JSON text, which preserves every byte.
    Completed {
        result: String,
        metadata: Option<String>,
    },
    Failed {
        error: String,
    },
}

/// Value of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    version: u32,
    /// Owner token as 32 hexadecimal digits. Kept after completion, so that an owner whose answer was lost recognises its write.
    owner: String,
    fingerprint: String,
    pub(crate) state: State,
    /// Lease or retention, counted from the entry's stamp.
    for_ms: i64,
    /// Stamp of the first claim, unless this entry is the first claim.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    claimed_at_ms: Option<i64>,
}

impl Value {
    pub(crate) fn new(
        owner: OwnerToken,
        fingerprint: Fingerprint,
        state: State,
        keep: Duration,
        claimed_at: Option<Timestamp>,
    ) -> Self {
        Value {
            version: VERSION,
            owner: format!("{:032x}", owner.as_u128()),
            fingerprint: fingerprint.to_string(),
            state,
            for_ms: i64::try_from(keep.as_millis()).unwrap_or(i64::MAX),
            claimed_at_ms: claimed_at.map(Timestamp::as_millis),
        }
    }

    /// Milliseconds after the stamp at which the key counts as absent.
    pub(crate) fn expires_after_ms(&self) -> i64 {
        let more = if self.state == State::InProgress { ABANDONED_AFTER } else { Duration::ZERO };
        self.for_ms.saturating_add(i64::try_from(more.as_millis()).unwrap_or(i64::MAX))
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Text and numbers always serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// An entry of the bucket.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Revision for compare-and-set.
    pub(crate) revision: u64,
    /// Server time of the write.
    pub(crate) stamp: Timestamp,
    pub(crate) owner: OwnerToken,
    pub(crate) state: State,
    pub(crate) record: IdempotencyRecord,
}

impl Entry {
    /// Parses an entry. `max_age` of the bucket limits lease and retention.
    pub(crate) fn read(message: &StreamMessage, max_age: Option<Duration>) -> Result<Self, NatsError> {
        let unreadable = |why: String| NatsError::Unreadable { entry: message.subject.to_string(), why };
        let value: Value =
            serde_json::from_slice(&message.payload).map_err(|error| unreadable(error.to_string()))?;
        if value.version != VERSION {
            return Err(unreadable(format!("its format version is {}, not {VERSION}", value.version)));
        }
        let stamp = stamp(message.time);
        let owner = u128::from_str_radix(&value.owner, 16).map(OwnerToken::from_u128);
        let owner = owner.map_err(|error| unreadable(format!("its owner is invalid: {error}")))?;
        let fingerprint =
            fingerprint(&value.fingerprint).ok_or_else(|| unreadable("its fingerprint is invalid".into()))?;
        let max_ms = max_age.map_or(i64::MAX, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
        let until = Timestamp::from_millis(stamp.as_millis().saturating_add(value.for_ms.min(max_ms)));
        let state = match &value.state {
            State::InProgress => KeyState::InProgress { owner, lease_until: until },
            State::Completed { result, metadata } => {
                KeyState::Completed { result: result.clone(), metadata: metadata.clone(), expires_at: until }
            }
            State::Failed { error } => KeyState::Failed { error: error.clone(), expires_at: until },
        };
        let created_at = value.claimed_at_ms.map_or(stamp, Timestamp::from_millis);
        let record = IdempotencyRecord { state, fingerprint, created_at, updated_at: stamp };
        Ok(Entry { revision: message.sequence, stamp, owner, state: value.state, record })
    }

    /// Whether this owner may change the entry.
    pub(crate) fn is_owned_by(&self, owner: OwnerToken) -> bool {
        self.owner == owner && self.state == State::InProgress
    }
}

/// Server time of an entry, converted through the standard library to be independent of the client's time crate.
pub(crate) fn stamp(time: impl Into<SystemTime>) -> Timestamp {
    Timestamp::from(time.into())
}

fn fingerprint(text: &str) -> Option<Fingerprint> {
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(Fingerprint::from_bytes(bytes))
}
