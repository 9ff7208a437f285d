//! Waits for the end of an event: until it is done or dead, or only deliveries are left that a publisher does not wait for.

use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::breaker::BreakerSnapshot;
use redrive_store::{AttemptRow, DeliveryRow, EventDetail, EventId, EventStatus, StoreError};
use tokio::sync::{oneshot, watch};

use crate::core::{Core, Phase};
use crate::error::BusError;

/// Interval at which a publisher checks whether another process has finished its event.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A delivery that is due later than its backoff by this was parked meanwhile.
const BACKOFF_TOLERANCE: Duration = Duration::from_secs(1);

impl Core {
    /// Releases a waiting publisher if no delivery of its event is left that it waits for.
    pub(crate) async fn release_publisher_if_parked(&self, id: EventId) {
        if self.waiters.has(id)
            && let Ok(event) = self.store.event(id).await
            && self.is_only_parked(&event)
        {
            self.waiters.release(id);
        }
    }

    /// Whether only deliveries are left that a publisher does not wait for: parked and leased ones, the backlog, those of paused subscriptions.
    fn is_only_parked(&self, event: &EventDetail) -> bool {
        let is_open =
            |delivery: &&DeliveryRow| !matches!(delivery.status, EventStatus::Done | EventStatus::Dlq);
        let mut open = event.deliveries.iter().filter(is_open).peekable();
        // With a due time of its own, the event itself waits for it, or for its backoff.
        event.due_at.is_none()
            && open.peek().is_some()
            && open.all(|delivery| self.is_parked(event.id, delivery, &event.attempts))
    }

    fn is_parked(&self, id: EventId, delivery: &DeliveryRow, attempts: &[AttemptRow]) -> bool {
        let (now, subscriptions) = (self.clock.now(), self.subscriptions());
        let subscription = subscriptions.named(delivery.subscription.as_str());
        if delivery.is_leased || subscription.is_some_and(|subscription| subscription.is_paused()) {
            return true;
        }
        if delivery.is_running || self.waiters.is_snoozed(id, &delivery.subscription) {
            return false;
        }
        let Some(due) = delivery.due_at else { return true }; // in the backlog
        let is_behind_circuit =
            subscription.is_some_and(|subscription| subscription.breaker() != BreakerSnapshot::Closed);
        due > now && (is_behind_circuit || due > end_of_backoff(delivery, attempts))
    }
}

/// When a delivery would be due after its last failure, if nothing else had deferred it.
fn end_of_backoff(delivery: &DeliveryRow, attempts: &[AttemptRow]) -> Timestamp {
    let is_its_failure = |attempt: &&AttemptRow| {
        attempt.subscription == delivery.subscription.as_str() && attempt.class.is_some()
    };
    let wait =
        |attempt: &AttemptRow| Duration::from_millis(attempt.duration_ms.saturating_add(attempt.delay_ms));
    let ends = attempts.iter().filter(is_its_failure).map(|attempt| attempt.started_at + wait(attempt));
    ends.max().map_or(Timestamp::default(), |end| end + BACKOFF_TOLERANCE)
}

/// Waits for the end of an event that is due at `due_at`. Other processes send no notification here, so on a shared store the event is
/// polled, too.
pub(crate) async fn wait_for_end(
    core: &Core,
    id: EventId,
    due_at: Timestamp,
    mut finished: oneshot::Receiver<()>,
    mut deferrals: watch::Receiver<u64>,
) -> Result<EventId, BusError> {
    let mut phase = core.phase.subscribe();
    let is_due = || core.clock.now() >= due_at;
    loop {
        // A shutdown closes `finished` when it ends, so no poll is needed meanwhile.
        let polls = core.store.is_shared() && *phase.borrow_and_update() != Phase::ShuttingDown;
        tokio::select! {
            biased;
            ended = &mut finished => return ended.map(|_| id).map_err(|_| BusError::NotFinished { id }),
            _ = deferrals.changed() => {
                if is_due() {
                    core.release_publisher_if_parked(id).await;
                }
                continue;
            }
            _ = phase.changed(), if polls => continue,
            () = core.clock.sleep(POLL_INTERVAL), if polls => {}
        }
        match core.store.event(id).await {
            Ok(event) if matches!(event.status, EventStatus::Done | EventStatus::Dlq) => return Ok(id),
            Ok(event) if is_due() && core.is_only_parked(&event) => return Ok(id),
            // A deleted event is over, too.
            Err(StoreError::NoSuchEvent { .. }) => return Ok(id),
            // A local settlement notifies, or the next poll finds it.
            Ok(_) | Err(_) => {}
        }
    }
}
