//! Claim of an idempotency key under a lease that is renewed while the operation runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::idempotency::{IdempotencyError, IdempotencyKey, IdempotencyStore, OwnerToken};
use crate::timestamp::Timestamp;

/// A claimed key. Dropped without an outcome (cancelled, panicked), the claim is abandoned.
#[derive(Debug)]
pub(super) struct Claim {
    store: Arc<dyn IdempotencyStore>,
    key: IdempotencyKey,
    owner: OwnerToken,
    lease: Duration,
    /// Time just before the claim was requested, so never later than the start of the lease.
    claimed_at: Timestamp,
    /// Whether dropping abandons the claim.
    abandon_on_drop: AtomicBool,
    lost: AtomicBool,
}

impl Claim {
    pub(super) fn new(
        store: Arc<dyn IdempotencyStore>,
        key: IdempotencyKey,
        owner: OwnerToken,
        lease: Duration,
        claimed_at: Timestamp,
    ) -> Self {
        Claim {
            store,
            key,
            owner,
            lease,
            claimed_at,
            abandon_on_drop: AtomicBool::new(true),
            lost: AtomicBool::new(false),
        }
    }

    /// Interval between renewals; never zero, which would busy-loop.
    pub(super) fn renewal_interval(&self) -> Duration {
        (self.lease / 3).max(Duration::from_millis(1))
    }

    /// Whether a renewal was refused.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Renews the lease once.
    pub(super) async fn renew(&self) {
        match self.store.extend(&self.key, self.owner, self.lease).await {
            Ok(()) => {}
            Err(IdempotencyError::LeaseLost { .. }) => self.lost.store(true, Ordering::Release),
            Err(error) => self.warn(&error, "lease not renewed yet"),
        }
    }

    /// Renews the lease until it is lost or may be lost, then returns the reason.
    pub(super) async fn keep_renewing(&self, clock: &Clock) -> IdempotencyError {
        let mut renewed_at = self.claimed_at;
        loop {
            clock.sleep(self.renewal_interval()).await;
            let asked_at = clock.steady();
            // Without an answer of the store the lease is not renewed: wait no longer than its remaining time.
            let left = self.lease.saturating_sub(asked_at.since(renewed_at));
            tokio::select! {
                biased;
                answer = self.store.extend(&self.key, self.owner, self.lease) => match answer {
                    Ok(()) => renewed_at = asked_at,
                    Err(lost @ IdempotencyError::LeaseLost { .. }) => return lost,
                    Err(error) if left.is_zero() => return error,
                    Err(error) => self.warn(&error, "lease not renewed yet"),
                },
                () = clock.sleep(left) => return IdempotencyError::LeaseLost { key: self.key.clone() },
            }
        }
    }

    /// Keeps the key claimed until its lease ends, because the side effect has happened.
    pub(super) fn keep_until_lease_ends(&self) {
        self.abandon_on_drop.store(false, Ordering::Release);
    }

    pub(super) async fn complete(
        &self,
        result: &str,
        metadata: Option<&str>,
        keep: Duration,
    ) -> Result<(), IdempotencyError> {
        self.store.complete(&self.key, self.owner, result, metadata, keep).await
    }

    /// Releases the key after a failed call, so that the next caller may claim it.
    pub(super) async fn fail(&self, error: &str, keep: Duration) {
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
        if self.abandon_on_drop.load(Ordering::Acquire) {
            self.store.abandon(&self.key, self.owner);
        }
    }
}
