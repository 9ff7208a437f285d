//! Settles deliveries without a handler call: no subscription of this process matches, the event is split into deliveries, or a crash
//! suspect needs no isolation.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::{Claimed, Due, Settlement, SubscriptionName, Verdict};

use crate::builder::{Tracking, Unmatched};
use crate::core::{Core, Isolation};
use crate::pattern::Patterns;
use crate::subscription::Subscription;

use super::outcome::{failed_attempt, log_attempt, settlement};
use super::routing::{matching, remote};

/// Limits of the delay of a delivery for a subscription that no process has registered: the time for which the bus has run, within these.
const MIN_ORPHAN_DELAY: Duration = Duration::from_secs(1);
const MAX_ORPHAN_DELAY: Duration = Duration::from_secs(15);

/// Delay of such a delivery if it is a crash suspect: each check stops all other dispatching for a moment.
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

/// Settles a delivery that no subscription of any living process takes.
///
/// It waits for a subscription on record. Without one it is dead if it was owed to a subscription: it names one, or has waited, failed, or
/// was recovered or redriven. Otherwise the event is unmatched at its first dispatch: done or dead, as configured.
async fn no_subscription(core: &Core, claimed: &Claimed, isolation: Isolation) -> Settlement {
    let now = core.clock.now();
    if let Some(name) = &claimed.subscription {
        let remote = core.store.remote_subscriptions().await.unwrap_or_default();
        if remote.iter().any(|subscription| subscription.name == *name) {
            return settlement(core, Verdict::Defer(Due::At(now)));
        }
    }
    if waits_for_recorded(core, claimed, now).await {
        core.counters.orphaned(1);
        let delay = match isolation {
            Isolation::Exclusive => SUSPECT_ORPHAN_DELAY,
            Isolation::Concurrent => orphan_delay(core, now),
        };
        return settlement(core, Verdict::Defer(Due::At(now + delay)));
    }
    // Registered here a moment ago: the next dispatch calls it.
    if !matching(core, claimed.subscription.as_ref(), &claimed.event.event_type).is_empty() {
        return settlement(core, Verdict::Defer(Due::At(now)));
    }
    if claimed.subscription.is_some() || claimed.attempt > 1 || claimed.was_dispatched {
        return settlement(core, Verdict::Dead(DeadReason::NoSubscription));
    }
    core.counters.unmatched(1);
    if core.settings.unmatched == Unmatched::Done {
        return settlement(core, Verdict::Done);
    }
    let error = format!("no subscription matches {}", claimed.event.event_type);
    let name = SubscriptionName::new("(none)").expect("a valid name");
    let failure = failed_attempt(core, name, now, FailureClass::Permanent, error);
    log_attempt(core, claimed, "", 1, None, &failure);
    Settlement { failure: Some(failure), ..settlement(core, Verdict::Dead(DeadReason::NoSubscription)) }
}

/// Whether a subscription on record takes the delivery that this process has not registered.
async fn waits_for_recorded(core: &Core, claimed: &Claimed, now: Timestamp) -> bool {
    let Ok(recorded) = core.unregistered_subscriptions().await else { return true }; // without an answer nothing is decided
    match &claimed.subscription {
        // A subscription that another process has just registered may not be on record yet.
        Some(name) => {
            let created_at = claimed.event.created_at;
            // In both directions: the clock may have been set back since.
            let age = now.since(created_at).max(created_at.since(now));
            let is_new = claimed.attempt == 1 && age < MAX_ORPHAN_DELAY;
            is_new || recorded.iter().any(|one| one.name == *name)
        }
        None => {
            let event_type = claimed.event.event_type.as_str();
            recorded.iter().any(|one| Patterns::text_matches(&one.event_type, event_type))
        }
    }
}

/// Returns the delay before the next check: short after the start, when subscriptions are still being registered.
fn orphan_delay(core: &Core, now: Timestamp) -> Duration {
    let running_for = core.started_at.get().map_or(Duration::ZERO, |at| now.since(*at));
    running_for.clamp(MIN_ORPHAN_DELAY, MAX_ORPHAN_DELAY)
}
