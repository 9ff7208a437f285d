//! [`Attempt`]: information about the current attempt for the operation.

use crate::idempotency::IdempotencyKey;
use crate::policy::RetryPolicy;
use crate::timestamp::Timestamp;

const NEVER: Timestamp = Timestamp::from_millis(i64::MAX);

/// The current attempt, passed to the operation.
#[derive(Clone, Debug)]
pub struct Attempt {
    number: u32,
    max_attempts: u32,
    /// [`NEVER`] without a deadline: half the size of an `Option`, and every call moves this struct.
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

    /// Number of this attempt, counted from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Largest number of attempts.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Whether no further attempt follows a failure of this one.
    pub fn is_last(&self) -> bool {
        self.number >= self.max_attempts
    }

    /// Time at which this attempt is cancelled, if it has a timeout or the call has a deadline.
    pub fn deadline(&self) -> Option<Timestamp> {
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// Idempotency key to pass on, so that the destination can detect a repetition.
    pub fn idempotency_key(&self) -> Option<&IdempotencyKey> {
        self.idempotency_key.as_ref()
    }
}
