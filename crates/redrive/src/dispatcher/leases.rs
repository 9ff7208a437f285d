//! Ends pull leases: claims the leased deliveries for their consumers, and settles each with its consumer's result.

use std::sync::Arc;

use redrive_retry::Failure;
use redrive_store::{Finished, Leases, StoreError};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::core::Core;
use crate::handover::GivenBack;

use super::delivery;

/// Ends leases with a result for each. Returns for each whether it was still held, when the results are stored.
///
/// Goes on when the caller stops waiting: an unsettled claim would stay in processing.
pub(crate) async fn end_leases(
    core: Arc<Core>,
    leases: Leases,
    result: impl Fn() -> Result<(), Failure> + Send + 'static,
) -> Result<Vec<bool>, StoreError> {
    let Ok(working) = Arc::clone(&core.lease_work).acquire_owned().await else {
        return Err(StoreError::Closed);
    };
    let ending = tokio::spawn(end(core, leases, result, working));
    ending.await.unwrap_or_else(|error| Err(StoreError::Unknown { why: error.to_string() }))
}

/// Gives back leases in the background. After the shutdown of the bus they stay until their end.
pub(crate) fn release_in_background(core: &Arc<Core>, leases: Leases) {
    let working = Arc::clone(&core.lease_work).try_acquire_owned();
    if let (Some(runtime), Ok(working)) = (core.runtime.get(), working) {
        runtime.spawn(end(Arc::clone(core), leases, || Err(Failure::new(GivenBack)), working));
    }
}

async fn end(
    core: Arc<Core>,
    leases: Leases,
    result: impl Fn() -> Result<(), Failure>,
    _working: OwnedSemaphorePermit,
) -> Result<Vec<bool>, StoreError> {
    let claimed = core.store.claim_leased(leases, core.clock.now(), core.lease_slots.clone()).await?;
    let (mut settling, mut was_held) = (JoinSet::new(), vec![false; claimed.len()]);
    for (index, claimed) in claimed.into_iter().enumerate() {
        let Some(claimed) = claimed else { continue };
        let (core, result) = (Arc::clone(&core), result());
        settling.spawn(async move { (index, delivery::end_lease(core, claimed, result).await) });
    }
    let mut failed = None;
    while let Some(settled) = settling.join_next().await {
        match settled {
            Ok((index, Ok(finished))) => was_held[index] = finished != Finished::Fenced,
            Ok((_, Err(error))) => failed = Some(error),
            Err(error) => failed = Some(StoreError::Unknown { why: error.to_string() }),
        }
    }
    failed.map_or(Ok(was_held), Err)
}
