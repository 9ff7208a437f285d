//! One claimed delivery, from claim to settlement: find its subscriptions, ask admission, call the handlers, settle the result.
//!
//! A claim is for a whole event, whose matching handlers run one after the other ([`Tracking::Event`](crate::Tracking::Event)), or for
//! the delivery to one subscription.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use redrive_retry::breaker::BreakerSnapshot;
use redrive_retry::decision::DeadReason;
use redrive_retry::{Failure, FailureClass, RetryPolicy, Timestamp, fault};
use redrive_store::{
    Claimed, Due, FailedAttempt, Finished, LeaseToken, Leases, Settlement, StoreError, SubscriptionName,
    SucceededAttempt, Verdict,
};
use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use crate::admission::{Admission, AdmissionRequest, AttemptPermit, Refusal};
use crate::core::{Core, Isolation};
use crate::error::BusError;
use crate::event::Recorded;
use crate::handler::catch_panic;
use crate::handover::{GivenBack, Grant, Handover};
use crate::subscription::Subscription;

use super::attempt::call_handler;
use super::outcome::{
    decide_failure, effective_policy, error_text, failed_attempt, log_attempt, millis_between, settlement,
};
use super::routing::{matching, remote};
use super::span;
use super::unhandled::settle_unrun;

/// Handlers that succeeded in this attempt, and the consumer that took the event.
#[derive(Default)]
struct Succeeded {
    /// Idempotent subscriptions, which further attempts leave out.
    handled: Vec<SubscriptionName>,
    /// Attempts with a recorded detail.
    attempts: Vec<SucceededAttempt>,
    /// Other handlers that run again if a later one of the same event fails, with the steady time of their success.
    again: Vec<(Arc<Subscription>, Timestamp)>,
    /// The consumer that waits for the lease of this delivery.
    consumer: Option<(LeaseToken, oneshot::Sender<LeaseToken>)>,
}

/// Runs one delivery and settles it.
pub(super) async fn run(core: Arc<Core>, claimed: Claimed, isolation: Isolation) {
    core.counters.dispatched(claimed.sent_at.elapsed());
    let span = span::of(&claimed);
    let began = Instant::now();
    // Outside of the guarded future: successes count even if later code panics.
    let mut succeeded = Succeeded::default();
    let running = run_handlers(&core, &claimed, isolation, &mut succeeded).instrument(span.clone());
    // Each handler has its own guard. This one catches panics of user code around it: an error's Display, an audit sink.
    let decided = catch_panic(pin!(running)).await;
    let settlement = decided.unwrap_or_else(|panic| after_panic(&core, &claimed, &panic));
    let settlement = Settlement { handled: succeeded.handled, succeeded: succeeded.attempts, ..settlement };
    span::record(&span, &settlement, began.elapsed());
    let name = claimed.subscription.clone();
    // From before the settlement, which frees the slot of the delivery, until the consumer has the token.
    let _working = match succeeded.consumer {
        Some(_) => Arc::clone(&core.lease_work).acquire_owned().await.ok(),
        None => None,
    };
    let settled = settle(&core, claimed, settlement, &span).await;
    if let (Some((token, consumer)), Some(name)) = (succeeded.consumer, name) {
        grant(core, name, token, consumer, settled.is_ok_and(|finished| finished == Finished::NotYet)).await;
    }
}

/// Passes the token of a stored lease on to the consumer. If that has left meanwhile, the delivery returns to the backlog.
async fn grant(
    core: Arc<Core>,
    name: SubscriptionName,
    token: LeaseToken,
    consumer: oneshot::Sender<LeaseToken>,
    is_stored: bool,
) {
    if is_stored && consumer.send(token).is_err() {
        let (leases, now) = (Leases { names: vec![name], tokens: vec![token] }, core.clock.now());
        match core.store.claim_leased(leases, now, core.lease_slots.clone()).await {
            Ok(claimed) => {
                for claimed in claimed.into_iter().flatten() {
                    let _ = end_lease(Arc::clone(&core), claimed, Err(Failure::new(GivenBack))).await; // logged
                }
            }
            Err(error) => {
                tracing::warn!(target: "redrive::dispatcher", %error, "a lease without a consumer stays until its end");
            }
        }
    }
}

/// Settles a leased delivery with the result of its consumer.
pub(super) async fn end_lease(
    core: Arc<Core>,
    claimed: Claimed,
    result: Result<(), Failure>,
) -> Result<Finished, StoreError> {
    let span = span::of(&claimed);
    let began = Instant::now();
    let running = decide_lease_end(&core, &claimed, result).instrument(span.clone());
    let settlement =
        catch_panic(pin!(running)).await.unwrap_or_else(|panic| after_panic(&core, &claimed, &panic));
    span::record(&span, &settlement, began.elapsed());
    settle(&core, claimed, settlement, &span).await
}

/// The settlement of a leased delivery: as its consumer says, whatever the subscriptions of this process are.
async fn decide_lease_end(core: &Core, claimed: &Claimed, result: Result<(), Failure>) -> Settlement {
    let matching = matching(core, claimed.subscription.as_ref(), &claimed.event.event_type);
    let policy = effective_policy(core, claimed, &matching);
    let run = Run { core, claimed, isolation: Isolation::Concurrent, policy: &policy };
    match matching.first() {
        Some(subscription) => run.settle_lease(subscription, result),
        // Unsubscribed a moment ago.
        None if result.is_ok() => settlement(core, Verdict::Done),
        None => settlement(core, Verdict::Defer(Due::At(core.clock.now()))),
    }
}

/// Stores the result. Then wakes the backlog loop, and the publisher if the event is finished.
async fn settle(
    core: &Core,
    claimed: Claimed,
    settlement: Settlement,
    span: &Span,
) -> Result<Finished, StoreError> {
    let (id, event_type) = (claimed.event.id, claimed.event.event_type.clone());
    let backlogged = backlogged(&claimed, &settlement);
    let (is_whole, verdict) = (claimed.subscription.is_none(), settlement.verdict.clone());
    let settled = core.store.settle(claimed, settlement).await;
    for name in backlogged {
        core.deferred_to_backlog(&name);
    }
    match &settled {
        Ok(Finished::NotYet) => match verdict {
            Verdict::Retry(_) if is_whole => {} // the publisher waits for the backoff
            // It waits for a subscription that no process has registered.
            Verdict::Defer(_) if is_whole => core.waiters.release(id),
            _ => core.release_publisher_if_parked(id).await,
        },
        // Another process has the delivery, or an operator ended it: this result does not count.
        Ok(Finished::Fenced) => {
            tracing::warn!(target: "redrive::dispatcher", parent: span, event_id = %id, "the claim was lost before its result was stored");
            core.release_publisher_if_parked(id).await;
        }
        Ok(finished) => {
            core.counters.finished(&event_type, *finished);
            core.waiters.release(id);
        }
        // The delivery stays claimed and the next start recovers it: one redelivery, no loss.
        Err(error) => {
            tracing::error!(target: "redrive::dispatcher", parent: span, event_id = %id, %error, "could not settle");
            core.waiters.abandon(id);
        }
    }
    settled
}

/// The subscriptions whose backlog this settlement extends.
fn backlogged(claimed: &Claimed, settlement: &Settlement) -> Vec<SubscriptionName> {
    let is_own =
        matches!(settlement.verdict, Verdict::Defer(Due::Backlog) | Verdict::ReleaseSuspect(Due::Backlog));
    let own = claimed.subscription.iter().filter(|_| is_own);
    let split_off = settlement.split_off.iter().filter(|(_, due)| *due == Due::Backlog).map(|(name, _)| name);
    own.chain(split_off).cloned().collect()
}

/// Fails the attempt after a panic outside of a handler. Calls no user code, which might panic again.
fn after_panic(core: &Core, claimed: &Claimed, panic: &Failure) -> Settlement {
    let error = panic.to_string();
    tracing::error!(target: "redrive::dispatcher", event_id = %claimed.event.id, %error, "a panic ended an attempt");
    let matching = matching(core, claimed.subscription.as_ref(), &claimed.event.event_type);
    let policy = effective_policy(core, claimed, &matching);
    let name = SubscriptionName::new("(dispatcher)").expect("a valid name");
    let failed = failed_attempt(core, name, core.clock.now(), FailureClass::Transient, error);
    decide_failure(core, claimed, &policy, BreakerSnapshot::Closed, failed)
}

/// Calls the matching handlers one after the other and decides between done, retry, deferral and dead letter.
async fn run_handlers(
    core: &Core,
    claimed: &Claimed,
    isolation: Isolation,
    succeeded: &mut Succeeded,
) -> Settlement {
    let matching = matching(core, claimed.subscription.as_ref(), &claimed.event.event_type);
    Span::current().record("handlers", matching.len());
    if let Some(settlement) = settle_unrun(core, claimed, isolation, &matching).await {
        return settlement;
    }
    let policy = effective_policy(core, claimed, &matching);
    let run = Run { core, claimed, isolation, policy: &policy };
    if let (Some(leased_at), [subscription]) = (claimed.leased_at, matching.as_slice()) {
        let timeout = Failure::timeout(core.clock.now().since(leased_at));
        return run.settle_lease(subscription, Err(timeout));
    }
    if claimed.attempt > policy.max_attempts() {
        // A crash ended every attempt.
        return settlement(core, Verdict::Dead(DeadReason::AttemptsExhausted));
    }
    // The retry of a whole event is counted once, at its first handler call.
    let (mut split_off, mut is_retry_counted) = (Vec::new(), claimed.attempt == 1);
    for subscription in &matching {
        if subscription.is_idempotent && claimed.handled.contains(&subscription.name) {
            continue;
        }
        let permit = match run.admit(subscription).await {
            Ok(permit) => permit,
            Err(Refusal::PastDeadline(because)) => return settlement(core, Verdict::Dead(because)),
            Err(Refusal::Deferred(due)) => {
                fault!("parked-dropped" => continue);
                core.waiters.set_snoozed(claimed.event.id, &subscription.name, false);
                split_off.push((subscription.name.clone(), due));
                continue;
            }
        };
        if !std::mem::replace(&mut is_retry_counted, true) {
            core.counters.retried(&claimed.event.event_type);
        }
        match run.call(subscription, permit, succeeded).await {
            CallResult::Succeeded => {}
            CallResult::HandedOver(grant) => return lease_or_return(core, claimed, grant, succeeded),
            CallResult::Deferred(due) => split_off.push((subscription.name.clone(), due)),
            CallResult::Failed(failed) => {
                succeeded.expect_again(claimed);
                split_off.extend(remote(core, claimed, &matching).await);
                return run.settle_failure(subscription, failed, split_off);
            }
        }
    }
    split_off.extend(remote(core, claimed, &matching).await);
    match split_off.as_slice() {
        [(_, due)] if claimed.subscription.is_some() => settlement(core, Verdict::Defer(*due)),
        _ => Settlement { split_off, ..settlement(core, Verdict::Done) },
    }
}

/// One run of the handlers of a claimed delivery.
struct Run<'a> {
    core: &'a Core,
    claimed: &'a Claimed,
    isolation: Isolation,
    policy: &'a RetryPolicy,
}

/// Result of one handler call.
enum CallResult {
    Succeeded,
    /// Taken by the consumer of a pull queue.
    HandedOver(Grant),
    /// Snoozed by the handler, or no consumer of a pull queue takes it: due again at this time, no attempt charged.
    Deferred(Due),
    Failed(FailedCall),
}

/// A handler call that failed, classified and reported to limiter, budget and circuit.
struct FailedCall {
    failure: Failure,
    class: FailureClass,
    started_at: Timestamp,
    /// The detail that the handler recorded.
    detail: Option<String>,
}

impl Run<'_> {
    /// Asks the admission of one subscription for a permit.
    ///
    /// Past the deadline, a subscription of a whole event gets a delivery of its own, which becomes a dead letter without the others.
    async fn admit<'s>(&self, subscription: &'s Subscription) -> Result<AttemptPermit<'s>, Refusal> {
        let Run { core, claimed, isolation, policy } = *self;
        let (name, counters) = (&subscription.name, &subscription.counters);
        let request = AdmissionRequest { core, claimed, name, counters, policy, isolation };
        subscription.admission.admit(request).await.map_err(|refusal| match refusal {
            Refusal::PastDeadline(_) if claimed.subscription.is_none() => {
                Refusal::Deferred(Due::At(core.clock.now()))
            }
            refusal => refusal,
        })
    }

    /// Calls the handler of an admitted subscription, and reports the result to admission, counters and waiters.
    async fn call(
        &self,
        subscription: &Arc<Subscription>,
        mut permit: AttemptPermit<'_>,
        succeeded: &mut Succeeded,
    ) -> CallResult {
        let Run { core, claimed, policy, .. } = *self;
        let started_at = core.clock.now();
        let (result, Recorded { detail, handover }) = call_handler(core, claimed, subscription, policy).await;
        if handover.is_some() {
            permit.offer_made();
        }
        match handover {
            None => {}
            Some(Handover::Accepted(grant)) if grant.consumer.is_closed() => {
                drop(permit); // it has left, so that a retry is not paid from the budget
                return CallResult::Deferred(self.deferred(subscription, Due::Backlog));
            }
            Some(Handover::Accepted(grant)) => {
                permit.handed_over(core.store.as_ref()).await;
                return CallResult::HandedOver(grant);
            }
            Some(Handover::GivenBack) => {
                drop(permit);
                return CallResult::Deferred(self.deferred(subscription, Due::Backlog));
            }
        }
        let Err(failure) = result else {
            succeeded.record(core, claimed, subscription, permit, started_at, detail).await;
            return CallResult::Succeeded;
        };
        if let Some(due) = subscription.admission.deferred_by(&failure, core.clock.now()) {
            drop(permit); // a snooze says nothing about the handler
            return CallResult::Deferred(self.deferred(subscription, due));
        }
        let class = report_failure(core, permit, policy, &failure).await;
        CallResult::Failed(FailedCall { failure, class, started_at, detail })
    }

    /// Counts a delivery that is deferred until this time, no attempt charged.
    fn deferred(&self, subscription: &Subscription, due: Due) -> Due {
        Admission::count_deferral(self.core, &subscription.counters, due, 1);
        self.core.waiters.set_snoozed(self.claimed.event.id, &subscription.name, due != Due::Backlog);
        due
    }

    /// Settles the delivery of a pull subscription after its lease, with the result of the consumer or as a timeout.
    fn settle_lease(&self, subscription: &Subscription, result: Result<(), Failure>) -> Settlement {
        let Run { core, claimed, policy, .. } = *self;
        let started_at = claimed.leased_at.unwrap_or(claimed.started_at);
        let failure = match result {
            Err(failure) => failure,
            Ok(()) => {
                self.count_handled(subscription, started_at);
                subscription.counters.done(1);
                return settlement(core, Verdict::Done);
            }
        };
        if let Some(due) = subscription.admission.deferred_by(&failure, core.clock.now()) {
            return settlement(core, Verdict::Defer(self.deferred(subscription, due)));
        }
        self.count_handled(subscription, started_at);
        let class = policy.rules().class_of(&failure);
        self.settle_failure(subscription, FailedCall { failure, class, started_at, detail: None }, Vec::new())
    }

    fn count_handled(&self, subscription: &Subscription, started_at: Timestamp) {
        let took = self.core.clock.now().since(started_at);
        self.core.counters.handled(took);
        subscription.counters.handled(took);
    }

    /// Decides between retry and dead letter after a failed call, and logs and counts the attempt.
    fn settle_failure(
        &self,
        subscription: &Subscription,
        failed: FailedCall,
        split_off: Vec<(SubscriptionName, Due)>,
    ) -> Settlement {
        let Run { core, claimed, policy, .. } = *self;
        let FailedCall { failure, class, started_at, detail } = failed;
        // Other subscriptions share the event: the circuit of one does not delay its retry.
        let breaker = match claimed.subscription {
            Some(_) => subscription.admission.breaker_for_retry(),
            None => BreakerSnapshot::Closed,
        };
        let failed = failed_attempt(core, subscription.name.clone(), started_at, class, error_text(&failure));
        let failed = FailedAttempt { detail, ..failed };
        let is_throttled = subscription.admission.is_throttled(class);
        let policy = if is_throttled { Cow::Owned(policy.throttled()) } else { Cow::Borrowed(policy) };
        let settlement = decide_failure(core, claimed, &policy, breaker, failed);
        count_failure(core, claimed, subscription, &policy, split_off, settlement)
    }
}

impl Succeeded {
    /// Notes for the handlers before the failed one that they run again at the retry: an event counts once in the window of each circuit.
    fn expect_again(&self, claimed: &Claimed) {
        for (subscription, counted_at) in &self.again {
            subscription.admission.circuit.expect_again(claimed.event.id.as_uuid().as_u128(), *counted_at);
        }
    }

    async fn record(
        &mut self,
        core: &Core,
        claimed: &Claimed,
        subscription: &Arc<Subscription>,
        permit: AttemptPermit<'_>,
        started_at: Timestamp,
        detail: Option<String>,
    ) {
        let counted_at = core.clock.steady();
        permit.succeeded(core.store.as_ref()).await;
        subscription.counters.done(1);
        // The delivery to a single subscription ends with this success: no further attempt has to leave the handler out.
        match (claimed.subscription.is_none(), subscription.is_idempotent) {
            (true, true) => self.handled.push(subscription.name.clone()),
            (true, false) => self.again.push((Arc::clone(subscription), counted_at)),
            (false, _) => {}
        }
        self.attempts.extend(detail.map(|detail| SucceededAttempt {
            subscription: subscription.name.clone(),
            started_at,
            duration_ms: millis_between(started_at, core.clock.now()),
            detail,
        }));
    }
}

/// Leases a delivery to the consumer that takes it, or returns it to the backlog if that has left.
fn lease_or_return(core: &Core, claimed: &Claimed, grant: Grant, succeeded: &mut Succeeded) -> Settlement {
    match claimed.new_lease().filter(|_| !grant.consumer.is_closed()) {
        None => settlement(core, Verdict::Defer(Due::Backlog)),
        Some(token) => {
            succeeded.consumer = Some((token, grant.consumer));
            settlement(core, Verdict::Lease { token, until: grant.until })
        }
    }
}

/// Reports the failure of an attempt to limiter, budget and circuit, and returns its class.
async fn report_failure(
    core: &Core,
    permit: AttemptPermit<'_>,
    policy: &RetryPolicy,
    failure: &Failure,
) -> FailureClass {
    let class_of = || policy.rules().class_of(failure);
    if is_store_outage(failure) {
        drop(permit); // that says nothing about the receiver
        return class_of();
    }
    permit.failed(class_of, core.clock.now(), core.store.as_ref()).await
}

/// Whether a handler failed because a database of the bus is unavailable, as on a full disk.
fn is_store_outage(failure: &Failure) -> bool {
    let of_bus = match failure.find::<BusError>() {
        Some(BusError::Store(error)) => Some(error),
        _ => None,
    };
    failure.find::<StoreError>().or(of_bus).is_some_and(StoreError::is_unavailable)
}

/// Logs and counts a failed attempt whose settlement is decided.
fn count_failure(
    core: &Core,
    claimed: &Claimed,
    subscription: &Subscription,
    policy: &RetryPolicy,
    split_off: Vec<(SubscriptionName, Due)>,
    settlement: Settlement,
) -> Settlement {
    let is_dead = matches!(settlement.verdict, Verdict::Dead(_));
    if let Some(failure) = &settlement.failure {
        let until = subscription.breaker().refuses_until().filter(|_| !is_dead);
        log_attempt(core, claimed, &subscription.id, policy.max_attempts(), until, failure);
    }
    subscription.counters.failed(is_dead);
    // A retry asks the deferred subscriptions again. Of a dead event they still get their own deliveries.
    Settlement { split_off: if is_dead { split_off } else { Vec::new() }, ..settlement }
}
