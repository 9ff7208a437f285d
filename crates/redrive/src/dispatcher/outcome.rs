//! From a failed attempt to its settlement: the effective policy, the recorded decision and the retry log entry.

use std::borrow::Cow;
use std::sync::Arc;

use redrive_retry::audit::{Level, RetryLogEntry, truncated};
use redrive_retry::breaker::BreakerSnapshot;
use redrive_retry::decision::{Decision, DecisionRecord, Identity, Outcome, Situation};
use redrive_retry::policy::PolicyError;
use redrive_retry::{Failure, FailureClass, RetryOverride, RetryPolicy, Timestamp};
use redrive_store::{Claimed, Due, FailedAttempt, Recovered, Settlement, SubscriptionName, Verdict};

use crate::core::Core;
use crate::subscription::Subscription;

use super::routing::matching;

/// The longest error text that is stored, in bytes.
const MAX_ERROR_BYTES: usize = 8 << 10;

/// A failed attempt that ends now. The decision adds delay and record, the caller the detail that the handler recorded.
pub(super) fn failed_attempt(
    core: &Core,
    subscription: SubscriptionName,
    started_at: Timestamp,
    class: FailureClass,
    error: String,
) -> FailedAttempt {
    let duration_ms = millis_between(started_at, core.clock.now());
    FailedAttempt {
        subscription,
        started_at,
        duration_ms,
        class,
        delay_ms: 0,
        error,
        record: None,
        detail: None,
    }
}

/// Decides between retry and dead letter, and stores the decision with its inputs.
pub(super) fn decide_failure(
    core: &Core,
    claimed: &Claimed,
    policy: &RetryPolicy,
    breaker: BreakerSnapshot,
    failed: FailedAttempt,
) -> Settlement {
    let (now, event_id) = (core.clock.now(), claimed.event.id.to_string());
    let identity = Identity::new(core.settings.seed, &event_id, failed.subscription.as_str());
    let situation = Situation::new(policy, identity, claimed.attempt, Outcome::Failed(failed.class), now);
    let situation = Situation { started_at: claimed.started_at, breaker, ..situation };
    let record = DecisionRecord::decide(situation);
    let (verdict, delay_ms) = match record.decision() {
        Decision::Retry { at, delay_ms, .. } => (Verdict::Retry(Due::At(at)), delay_ms),
        Decision::Dead { because } => (Verdict::Dead(because), 0),
        Decision::Done | Decision::Park { .. } => {
            unreachable!("a failed attempt is retried or dead: the budget is asked when the retry starts")
        }
    };
    let failure = FailedAttempt { delay_ms, record: serde_json::to_string(&record).ok(), ..failed };
    Settlement { failure: Some(failure), ..Settlement::new(now, verdict) }
}

/// A settlement with this verdict at the current time.
pub(super) fn settlement(core: &Core, verdict: Verdict) -> Settlement {
    Settlement::new(core.clock.now(), verdict)
}

/// The policy of a delivery: the bus's, the merged overrides of the matching subscriptions, the event's own override, in this order.
pub(super) fn effective_policy<'a>(
    core: &'a Core,
    claimed: &Claimed,
    matching: &[Arc<Subscription>],
) -> Cow<'a, RetryPolicy> {
    merge_policies(core, claimed.event.retry.as_ref(), matching).unwrap_or_else(|error| {
        tracing::error!(target: "redrive::dispatcher", event_id = %claimed.event.id, %error, "using the default policy");
        Cow::Borrowed(&core.settings.policy)
    })
}

fn merge_policies<'a>(
    core: &'a Core,
    own: Option<&RetryOverride>,
    matching: &[Arc<Subscription>],
) -> Result<Cow<'a, RetryPolicy>, PolicyError> {
    let mut overrides = matching.iter().filter_map(|subscription| subscription.retry.as_ref()).peekable();
    let merged = match overrides.peek() {
        None => Cow::Borrowed(&core.settings.policy),
        Some(_) => Cow::Owned(RetryOverride::merge(overrides, &core.settings.policy)?),
    };
    match own {
        None => Ok(merged),
        Some(own) => own.apply_to(&merged).map(Cow::Owned),
    }
}

/// Writes the retry log entry of a failed attempt. A circuit that is open until `open_until` outlasts a shorter backoff.
pub(super) fn log_attempt(
    core: &Core,
    claimed: &Claimed,
    subscription_id: &str,
    max_attempts: u32,
    open_until: Option<Timestamp>,
    failure: &FailedAttempt,
) {
    let open_ms = open_until.map_or(0, |until| millis_between(core.clock.now(), until));
    let entry = RetryLogEntry {
        level: Level::Warn,
        event_id: claimed.event.id.to_string(),
        event_type: claimed.event.event_type.to_string(),
        subscription_id: subscription_id.to_owned(),
        attempt: claimed.attempt,
        max_attempts,
        delay_ms: failure.delay_ms.max(open_ms),
        error: failure.error.clone(),
    };
    log(core, &entry);
}

/// Writes the retry log entry of an attempt that a crash ended: one for each subscription that may have been running, because a whole
/// event does not say which.
pub(crate) fn log_recovered(core: &Core, recovered: &Recovered) {
    let matching = matching(core, recovered.subscription.as_ref(), &recovered.event_type);
    let policy = merge_policies(core, recovered.retry.as_ref(), &matching)
        .unwrap_or(Cow::Borrowed(&core.settings.policy));
    let mut ids: Vec<String> = matching.iter().map(|subscription| subscription.id.clone()).collect();
    if ids.is_empty() {
        ids = core.unregistered_ids(recovered.subscription.as_ref(), &recovered.event_type);
    }
    if ids.is_empty() {
        ids.push(String::new()); // none is on record any more
    }
    for subscription_id in ids {
        let entry = RetryLogEntry {
            level: Level::Warn,
            event_id: recovered.id.to_string(),
            event_type: recovered.event_type.to_string(),
            subscription_id,
            attempt: recovered.attempt,
            max_attempts: policy.max_attempts(),
            delay_ms: 0,
            error: recovered.error.clone(),
        };
        log(core, &entry);
    }
}

fn log(core: &Core, entry: &RetryLogEntry) {
    if let Err(error) = core.settings.audit.log(entry) {
        tracing::error!(target: "redrive::audit", %error, ?entry, "the audit sink refused a retry log entry");
    }
}

/// The error text to store, cut at [`MAX_ERROR_BYTES`].
pub(super) fn error_text(failure: &Failure) -> String {
    truncated(failure.to_string(), MAX_ERROR_BYTES)
}

pub(super) fn millis_between(start: Timestamp, end: Timestamp) -> u64 {
    u64::try_from(end.since(start).as_millis()).unwrap_or(u64::MAX)
}
