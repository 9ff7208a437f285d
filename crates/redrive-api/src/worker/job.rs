//! One delivery: runs the handler under its lease, and settles the event.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redrive_retry::Failure;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::handler::{CancelReason, Context, catch_panic};
use super::leases::{HeldLease, LostBy};
use super::outcome::Settlement;
use super::settler::Settled;
use super::state::State;
use crate::subscriptions::{LeasedEvent, NackOutcome};

/// Handles one event and settles it. `slot` is freed when the handler has ended, `unsettled` when the settlement is stored.
pub(super) async fn handle(
    state: Arc<State>,
    event: LeasedEvent,
    slot: OwnedSemaphorePermit,
    unsettled: OwnedSemaphorePermit,
) {
    let mut lease = state.leases.hold(event.lease.clone());
    let running = state.count_running();
    let settlement = run_handler(&state, event, &mut lease).await;
    drop((running, slot));
    match settlement {
        Some(settlement) => settle(&state, &lease, settlement).await,
        None => count(&state.counts.lost),
    }
    drop((lease, unsettled));
}

/// Gives an event back that was pulled and has not begun.
pub(super) async fn release(state: Arc<State>, event: LeasedEvent) {
    let lease = state.leases.hold(event.lease);
    settle(&state, &lease, Settlement::RELEASE).await;
}

/// Runs the handler; returns how the event is settled, or `None` if its lease has ended.
async fn run_handler(state: &State, event: LeasedEvent, lease: &mut HeldLease) -> Option<Settlement> {
    let (context, cancel) = Context::new(Arc::clone(&state.subscription), &event);
    let mut handling = pin!(limited(state, event, context, &cancel));
    loop {
        tokio::select! {
            biased;
            settlement = &mut handling => return Some(settlement),
            by = lease.lost() => {
                cancel.send_replace(Some(CancelReason::LeaseLost));
                tracing::warn!(subscription = &*state.subscription, lease = lease.name(), ?by, "a lease was lost");
                // Without the server's word the result is sent all the same: the lease may be valid.
                if by == LostBy::Server {
                    return None;
                }
            }
            () = state.abandoning() => {
                cancel.send_replace(Some(CancelReason::Stopping));
                return Some(Settlement::RELEASE);
            }
        }
    }
}

/// Runs the handler under its time limit; a panic is a failure.
async fn limited(
    state: &State,
    event: LeasedEvent,
    context: Context,
    cancel: &watch::Sender<Option<CancelReason>>,
) -> Settlement {
    let kept = state.settings.retry_delay.is_some().then(|| event.clone());
    let settlement_of = |failure: &Failure| {
        let delay = state.settings.retry_delay.as_ref().zip(kept.as_ref());
        let asked = delay.and_then(|(delay, event)| delay(event, failure));
        tracing::info!(subscription = &*state.subscription, error = %failure, "an event was not handled");
        Settlement::of_failure(failure, asked)
    };
    // The handler is called inside the guarded future: a panic before its first await is caught as well, and so is one of user code
    // around it, such as the text of an error.
    let handling = async {
        match (state.handler)(event, context).await {
            Ok(()) => Settlement::Ack,
            Err(failure) => settlement_of(&failure),
        }
    };
    let handled = match state.settings.timeout {
        None => catch_panic(handling).await,
        Some(limit) => tokio::select! {
            handled = catch_panic(handling) => handled,
            () = state.client.clock().sleep(limit) => {
                cancel.send_replace(Some(CancelReason::TimedOut));
                catch_panic(async { settlement_of(&Failure::timeout(limit)) }).await
            }
        },
    };
    handled.unwrap_or_else(|panic| {
        tracing::error!(subscription = &*state.subscription, error = %panic, "a handler panicked");
        Settlement::of_failure(&panic, None)
    })
}

async fn settle(state: &State, lease: &HeldLease, settlement: Settlement) {
    let counts = &state.counts;
    let of_done = match &settlement {
        Settlement::Ack => &counts.handled,
        Settlement::Nack { outcome: NackOutcome::Snooze, .. } => &counts.snoozed,
        Settlement::Nack { .. } => &counts.failed,
    };
    match state.settler.settle(lease.name(), settlement).await {
        Settled::Done => count(of_done),
        Settled::Lost => count(&counts.lost),
        Settled::Unknown => {}
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
