//! Which subscriptions a delivery is for, and the settlement of deliveries that no handler of this process takes.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::FailureClass;
use redrive_retry::decision::DeadReason;
use redrive_store::{Claimed, Due, EventType, Settlement, StoreError, SubscriptionName, Verdict};

use crate::builder::{Tracking, Unmatched};
use crate::core::{Core, Isolation};
use crate::subscription::Subscription;

use super::STORE_RETRY_DELAY;
use super::outcome::{failed_attempt, log_attempt, settlement};

/// How long a delivery for a subscription that no process has registered is deferred each time.
const ORPHAN_DELAY: Duration = Duration::from_secs(15);

/// How long such a delivery is deferred if it is a crash suspect: each check stops all other dispatching for a moment.
const SUSPECT_ORPHAN_DELAY: Duration = Duration::from_secs(300);

/// Settles a delivery without a handler call: no subscription matches, the event still has to be split into deliveries, or a crash
/// suspect needs no isolation. Returns `None` if handlers have to run.
pub(super) async fn settle_unrun(
    core: &Core,
    claimed: &Claimed,
    isolation: Isolation,
    matching: &[Arc<Subscription>],
) -> Option<Settlement> {
    if matching.is_empty() {
        let split_off = remote(core, claimed, matching).await;
        if split_off.is_empty() {
            return Some(no_subscription(core, claimed, isolation).await);
        }
        return Some(Settlement { split_off, ..settlement(core, Verdict::Done) });
    }
    let now = core.clock.now();
    if core.settings.tracking == Tracking::PerSubscription && claimed.subscription.is_none() {
        // A publisher that does not know the subscriptions, such as the command line, stored a whole event: split it now.
        let own = matching.iter().map(|subscription| (subscription.name.clone(), Due::At(now)));
        let split_off = own.chain(remote(core, claimed, matching).await).collect();
        return Some(Settlement { split_off, ..settlement(core, Verdict::Done) });
    }
    // A handler that only calls another process cannot crash this one: its suspect returns to the queue and runs beside others.
    if isolation == Isolation::Exclusive && matching.iter().all(|subscription| subscription.is_remote_effect)
    {
        let due = match claimed.subscription {
            Some(_) => matching.iter().map(|one| one.admission.due_now(now)).max(),
            None => None,
        };
        return Some(settlement(core, Verdict::ReleaseSuspect(due.unwrap_or(Due::At(now)))));
    }
    None
}

/// The subscriptions that a delivery is for: the one that it names, or all that match its event type.
pub(super) fn matching(
    core: &Core,
    subscription: Option<&SubscriptionName>,
    event_type: &EventType,
) -> Vec<Arc<Subscription>> {
    let subscriptions = core.subscriptions();
    match subscription {
        None => subscriptions.matching(event_type),
        Some(name) => subscriptions.named(name.as_str()).cloned().into_iter().collect(),
    }
}

/// Deliveries for matching subscriptions of other processes. Read after the handlers have ended, because the answer must not be older
/// than the decision; without an answer nothing is decided.
pub(super) async fn remote(
    core: &Core,
    claimed: &Claimed,
    matching: &[Arc<Subscription>],
) -> Vec<(SubscriptionName, Due)> {
    if claimed.subscription.is_some() {
        return Vec::new();
    }
    let remote = loop {
        match core.remote_subscriptions(&claimed.event.event_type).await {
            Ok(remote) => break remote,
            Err(StoreError::Closed | StoreError::Stopped { .. }) => return Vec::new(), // nothing can be settled any more
            Err(_) => tokio::time::sleep(STORE_RETRY_DELAY).await, // the store logs that it cannot reach its server
        }
    };
    let now = core.clock.now();
    let is_new = |name: &SubscriptionName| {
        !claimed.handled.contains(name) && !matching.iter().any(|subscription| subscription.name == *name)
    };
    remote.into_iter().filter(is_new).map(|name| (name, Due::At(now))).collect()
}

/// Settles a delivery that no subscription of any live process matches: a delivery waits for its subscription, a whole event is done or
/// dead, as configured.
async fn no_subscription(core: &Core, claimed: &Claimed, isolation: Isolation) -> Settlement {
    let now = core.clock.now();
    if let Some(name) = &claimed.subscription {
        let remote = core.store.remote_subscriptions().await.unwrap_or_default();
        if remote.iter().any(|subscription| subscription.name == *name) {
            return settlement(core, Verdict::Defer(Due::At(now)));
        }
        core.counters.orphaned(1);
        let delay = if isolation == Isolation::Exclusive { SUSPECT_ORPHAN_DELAY } else { ORPHAN_DELAY };
        return settlement(core, Verdict::Defer(Due::At(now + delay)));
    }
    core.counters.unmatched(1);
    if core.settings.unmatched == Unmatched::Done {
        return settlement(core, Verdict::Done);
    }
    let error = format!("no subscription matches {}", claimed.event.event_type);
    let name = SubscriptionName::new("(none)").expect("a valid name");
    let failure = failed_attempt(core, name, now, FailureClass::Permanent, error);
    log_attempt(core, claimed, "", 1, &failure);
    Settlement { failure: Some(failure), ..settlement(core, Verdict::Dead(DeadReason::Permanent)) }
}
