//! [`Pause`]: waits between attempts as a task, as a blocked thread, or as a blocked thread that renews a lease.

use std::time::Duration;

use super::claim::Claim;
use crate::clock::Clock;

#[derive(Copy, Clone, Debug)]
pub(super) enum Pause<'a> {
    Async,
    Blocking,
    /// Sleeps in slices and renews the lease between them.
    BlockingUnderLease(&'a Claim),
}

impl Pause<'_> {
    pub(super) fn is_async(self) -> bool {
        matches!(self, Pause::Async)
    }

    pub(super) async fn sleep(self, clock: &Clock, wait: Duration) {
        match self {
            Pause::Async => clock.sleep(wait).await,
            Pause::Blocking => clock.sleep_blocking(wait),
            Pause::BlockingUnderLease(claim) => {
                let mut left = wait;
                while !left.is_zero() && !claim.is_lost() {
                    let slice = left.min(claim.renewal_interval());
                    clock.sleep_blocking(slice);
                    left -= slice;
                    claim.renew().await;
                }
            }
        }
    }
}
