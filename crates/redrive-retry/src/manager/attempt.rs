//! What the operation is told of the attempt it is part of.

use crate::idempotency::IdempotencyKey;
use crate::timestamp::Timestamp;

/// One attempt, as the operation sees it.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub(super) number: u32,
    pub(super) max_attempts: u32,
    pub(super) deadline: Option<Timestamp>,
    pub(super) idempotency_key: Option<IdempotencyKey>,
}

impl Attempt {
    /// Which attempt, counted from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many there may be.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Whether a failure now is final.
    pub fn is_last(&self) -> bool {
        self.number >= self.max_attempts
    }

    /// When this attempt will be cut off, if it will.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// The key to pass on, so that the far side can tell a repetition.
    pub fn idempotency_key(&self) -> Option<&IdempotencyKey> {
        self.idempotency_key.as_ref()
    }
}
