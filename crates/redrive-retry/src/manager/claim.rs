//! A key that is ours for as long as its lease is kept alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::idempotency::{IdempotencyError, IdempotencyKey, IdempotencyStore, OwnerToken};
use crate::timestamp::Timestamp;

/// The key is ours. Dropped without an outcome (cancelled, panicked), it is given up.
#[derive(Debug)]
pub(super) struct Claim {
    store: Arc<dyn IdempotencyStore>,
    key: IdempotencyKey,
    owner: OwnerToken,
    lease: Duration,
    /// Just before the lease was asked for, so never later than it began.
    taken_at: Timestamp,
    /// Whether to give it up when dropped.
    held: AtomicBool,
    lost: AtomicBool,
}

impl Claim {
    pub(super) fn new(
        store: Arc<dyn IdempotencyStore>,
        key: IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
        taken_at: Timestamp,
    ) -> Self {
        Claim {
            store,
            key,
            owner,
            lease,
            taken_at,
            held: AtomicBool::new(true),
            lost: AtomicBool::new(false),
        }
    }

    /// How long to wait between renewals. Never nothing, or it would never let go of the thread.
    pub(super) fn renewal_interval(&self) -> Duration {
        (self.lease / 3).max(Duration::from_millis(1))
    }

    /// Whether a renewal was refused.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Asks once for more time.
    pub(super) async fn renew(&self) {
        match self.store.extend(&self.key, self.owner, self.lease).await {
            Ok(()) => {}
            Err(IdempotencyError::LeaseLost { .. }) => self.lost.store(true, Ordering::Release),
            Err(error) => self.warn(&error, "lease not renewed yet"),
        }
    }

    /// Renews the lease until it is lost, or may be, which is when this returns.
    pub(super) async fn stay_alive(&self, clock: &Clock) -> IdempotencyError {
        let mut alive_at = self.taken_at;
        loop {
            clock.sleep(self.renewal_interval()).await;
            let asked_at = clock.now();
            // A store that does not answer does not keep the lease: what is left of it is all the time there is.
            let left = self.lease.saturating_sub(asked_at.since(alive_at));
            tokio::select! {
                biased;
                answer = self.store.extend(&self.key, self.owner, self.lease) => match answer {
                    Ok(()) => alive_at = asked_at,
                    Err(lost @ IdempotencyError::LeaseLost { .. }) => return lost,
                    Err(error) if left.is_zero() => return error,
                    Err(error) => self.warn(&error, "lease not renewed yet"),
                },
                () = clock.sleep(left) => return IdempotencyError::LeaseLost { key: self.key.clone() },
            }
        }
    }

    /// From here on the key must not be free before its lease ends: the side effect has happened.
    pub(super) fn keep_until_lease_ends(&self) {
        self.held.store(false, Ordering::Release);
    }

    pub(super) async fn complete(
        &self,
        result: &str,
        metadata: Option<&str>,
        keep: Duration,
    ) -> Result<(), IdempotencyError> {
        self.store.complete(&self.key, self.owner, result, metadata, keep).await
    }

    /// The call failed: the next caller may try.
    pub(super) async fn fail(self, error: &str, keep: Duration) {
        self.keep_until_lease_ends();
        if let Err(error) = self.store.release(&self.key, self.owner, Some(error), keep).await {
            self.warn(&error, "key not released; its lease ends by itself");
        }
    }

    fn warn(&self, error: &IdempotencyError, what: &str) {
        tracing::warn!(target: "redrive::idempotency", key = %self.key, %error, "{what}");
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.held.load(Ordering::Acquire) {
            self.store.abandon(&self.key, self.owner);
        }
    }
}
