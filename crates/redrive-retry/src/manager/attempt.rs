//! What the operation is told of the attempt it is part of.

use crate::idempotency::IdempotencyKey;
use crate::policy::RetryPolicy;
use crate::timestamp::Timestamp;

const NEVER: Timestamp = Timestamp::from_millis(i64::MAX);

/// One attempt, as the operation sees it.
#[derive(Clone, Debug)]
pub struct Attempt {
    number: u32,
    max_attempts: u32,
    /// The end of time if there is none: half the size of an `Option`, and this is moved for every call.
    deadline: Timestamp,
    idempotency_key: Option<IdempotencyKey>,
}

impl Attempt {
    #[inline]
    pub(super) fn new(
        number: u32,
        policy: &RetryPolicy,
        deadline: Option<Timestamp>,
        key: Option<&IdempotencyKey>,
    ) -> Self {
        let deadline = deadline.unwrap_or(NEVER);
        Attempt { number, max_attempts: policy.max_attempts(), deadline, idempotency_key: key.cloned() }
    }

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
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// The key to pass on, so that the far side can tell a repetition.
    pub fn idempotency_key(&self) -> Option<&IdempotencyKey> {
        self.idempotency_key.as_ref()
    }
}
