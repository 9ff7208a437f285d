//! Moves deliveries between the due queue and the backlogs on disk: defers those of full subscriptions, claims them when limits free.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_store::{BacklogClaimed, BacklogRequest, Due, StoreError};

use crate::admission::Admission;
use crate::core::Core;
use crate::limiter::Capacity;

use super::{STORE_RETRY_DELAY, report};

/// Delay before the next claim while all in-flight slots of the bus are taken.
const FULL_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Interval of reading the backlogs that other processes may have extended.
const SHARED_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of reading the backlogs for which consumers of a pull queue wait: another process may have stored an event for them.
const DEMAND_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The result of a request that the store refused: the backlog is unknown.
const REFUSED: BacklogClaimed = BacklogClaimed { claimed: 0, may_be_more: true };

/// Claims backlog deliveries of all subscriptions with capacity, until the bus ends.
pub(crate) async fn backlog_loop(core: Arc<Core>) {
    let is_shared = core.store.is_shared();
    let (mut all_polled_at, mut wanted_polled_at) = (core.clock.now(), core.clock.now());
    loop {
        let now = core.clock.now();
        let is_over = |at: Timestamp, interval| now.since(at) >= interval || now < at;
        let subscriptions = core.subscriptions();
        let wanted = || subscriptions.all().iter().filter(|one| one.admission.has_demand());
        if is_shared && is_over(all_polled_at, SHARED_POLL_INTERVAL) {
            all_polled_at = now;
            subscriptions.all().iter().for_each(|one| one.admission.backlog.may_have_grown());
        }
        if is_shared && is_over(wanted_polled_at, DEMAND_POLL_INTERVAL) {
            wanted_polled_at = now;
            wanted().for_each(|one| one.admission.backlog.may_have_grown());
        }
        let claims_again_at = claim_backlog(&core).await;
        let all_polls_at = is_shared.then_some(all_polled_at + SHARED_POLL_INTERVAL);
        let wanted_polls_at =
            (is_shared && wanted().next().is_some()).then_some(wanted_polled_at + DEMAND_POLL_INTERVAL);
        let next = claims_again_at.into_iter().chain(all_polls_at).chain(wanted_polls_at).min();
        drop(subscriptions);
        let sleep = async {
            match next {
                Some(at) => core.clock.sleep(at.since(core.clock.now()).max(Duration::from_millis(1))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = core.backlog_wakeup.notified() => {}
            () = sleep => {}
        }
    }
}

/// Claims for all subscriptions with capacity, until none has any. Returns when to try again, if that is known.
async fn claim_backlog(core: &Core) -> Option<Timestamp> {
    loop {
        if !core.is_dispatching() {
            return None; // switching on wakes the loop
        }
        let (now, subscriptions) = (core.clock.now(), core.subscriptions());
        let (mut asking, mut requests, mut next) = (Vec::new(), Vec::new(), None::<Timestamp>);
        for subscription in subscriptions.all() {
            match subscription.admission.capacity(now) {
                Capacity::Free(request) => {
                    requests.push(BacklogRequest { name: subscription.name.clone(), limit: request.limit });
                    subscription.admission.requested(request, now);
                    asking.push((&subscription.admission, request));
                }
                Capacity::FreeAt(at) => next = Some(next.map_or(at, |next| next.min(at))),
                Capacity::Full => {}
            }
        }
        if requests.is_empty() {
            return next;
        }
        let results = match core.store.claim_backlog(requests, now).await {
            Ok(results) => results,
            Err(error) => {
                asking.iter().for_each(|(admission, request)| admission.received(*request, REFUSED));
                report::<()>(Err(error), "claim backlog deliveries");
                return Some(now + STORE_RETRY_DELAY);
            }
        };
        for ((admission, request), result) in asking.iter().zip(&results) {
            admission.received(*request, *result);
        }
        // A subscription that got some asks for less in the next round, so other subscriptions get their share.
        let is_stuck = results.iter().all(|result| result.claimed == 0);
        if is_stuck && results.iter().any(|result| result.may_be_more) {
            return Some(now + FULL_RETRY_DELAY);
        }
    }
}

/// Defers due deliveries of full or paused subscriptions to the backlog before the next claim, so that they take no in-flight slot.
pub(super) async fn defer_full_subscriptions(core: &Core, now: Timestamp) -> Result<(), StoreError> {
    let subscriptions = core.subscriptions();
    let full: Vec<_> = subscriptions.all().iter().filter(|one| one.admission.is_full(now)).collect();
    if full.is_empty() {
        return Ok(());
    }
    let names = full.iter().map(|subscription| subscription.name.clone()).collect();
    let counts = match core.store.defer_to_backlog(names, now).await {
        Ok(counts) => counts,
        Err(error) => {
            // The store may have committed all the same.
            full.iter().for_each(|subscription| core.deferred_to_backlog(&subscription.name));
            return Err(error);
        }
    };
    for (subscription, count) in full.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
        Admission::count_deferral(core, &subscription.counters, Due::Backlog, count);
        // By name: the subscription may have been replaced meanwhile, and its successor claims the backlog.
        core.deferred_to_backlog(&subscription.name);
        core.deferrals.send_modify(|count| *count += 1);
    }
    Ok(())
}
