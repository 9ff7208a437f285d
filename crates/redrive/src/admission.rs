//! Admission control of one subscription: pause, concurrency and rate limit, retry budget and circuit breaker as one object.
//!
//! [`Admission::admit`] asks them in this order and returns one permit, or the time at which to ask again. A permit that is dropped
//! without a reported outcome frees the concurrency slot, refunds the retry and releases the probe slot of this process's circuit; the
//! probe slot of a shared breaker ends with its lease. A token of the rate limit stays spent.
//!
//! A delivery over a limit waits in the on-disk backlog, where it occupies no in-flight slot. Behind an open circuit, a subscription
//! with limits keeps its deliveries in the backlog, too; one without limits gives them the end of the open time as their due time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::breaker::BreakerSnapshot;
use redrive_retry::budget::BudgetSnapshot;
use redrive_retry::decision::{DeadReason, Decision, Identity, Outcome, Situation};
use redrive_retry::{Failure, FailureClass, RetryPolicy, Timestamp};
use redrive_store::{BacklogClaimed, Claimed, Due, Store, SubscriptionName};

use crate::backlog::Backlog;
use crate::budget::Budget;
use crate::circuit::{Circuit, CircuitPermit};
use crate::cluster_breaker::Attempted;
use crate::core::{Core, Isolation};
use crate::handover::GivenBack;
use crate::limiter::{Capacity, Limiter, Permit, PrefetchRequest};
use crate::metrics::SubscriptionCounters;
use crate::snooze::snoozed_until;

/// Number of backlog deliveries to claim at once for a subscription without limits.
const UNLIMITED_PREFETCH: usize = 256;

/// Interval of checking whether the probe of a half-open circuit is still in flight.
const PROBE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which a crash suspect of a paused subscription is deferred; each check stops all other dispatching for a moment.
const PAUSED_SUSPECT_DELAY: Duration = Duration::from_secs(300);

/// Decides whether an attempt of one subscription may start, and how many backlog deliveries to claim for it.
#[derive(Debug)]
pub(crate) struct Admission {
    /// `None` without a concurrency or rate limit.
    pub(crate) limiter: Option<Arc<Limiter>>,
    /// `None` where retries are not limited.
    pub(crate) budget: Option<Budget>,
    pub(crate) circuit: Circuit,
    /// Shared with the limiter.
    pub(crate) backlog: Arc<Backlog>,
}

/// One attempt that asks for admission.
#[derive(Copy, Clone)]
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) core: &'a Core,
    pub(crate) claimed: &'a Claimed,
    pub(crate) name: &'a SubscriptionName,
    pub(crate) counters: &'a SubscriptionCounters,
    pub(crate) policy: &'a RetryPolicy,
    pub(crate) isolation: Isolation,
}

/// Reason why no attempt is made now. No attempt is charged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Ask again at this time.
    Deferred(Due),
    /// The retry budget cannot pay for another attempt before the policy's deadline.
    PastDeadline(DeadReason),
}

impl Admission {
    /// Takes over pause, throttling and used tokens of the admission that this one replaces.
    pub(crate) fn inherit(&self, before: &Admission, reset_limits: bool, now: Timestamp) {
        if before.is_paused() {
            self.set_paused(true);
        }
        if let (Some(limiter), Some(before), false) = (&self.limiter, &before.limiter, reset_limits) {
            limiter.inherit(before, now);
        }
    }

    /// Admits one attempt, or says when to ask again. A crash suspect bypasses limits and budget: it must not wait among others.
    pub(crate) async fn admit<'a>(
        &'a self,
        request: AdmissionRequest<'_>,
    ) -> Result<AttemptPermit<'a>, Refusal> {
        let AdmissionRequest { core, claimed, counters, isolation, .. } = request;
        let is_suspect = isolation == Isolation::Exclusive;
        if self.is_paused() && is_suspect {
            return Err(Refusal::Deferred(Due::At(core.clock.now() + PAUSED_SUSPECT_DELAY)));
        }
        // A lease is of a delivery: that of a whole event is split off first.
        if claimed.subscription.is_none() && self.limiter.as_ref().is_some_and(|limiter| limiter.is_pulled())
        {
            Admission::count_deferral(core, counters, Due::Backlog, 1);
            return Err(Refusal::Deferred(Due::Backlog));
        }
        // First: an attempt that does not start costs no retry.
        let slot = match self.slot(core, is_suspect).await {
            Ok(slot) => slot,
            Err(due) => {
                Admission::count_deferral(core, counters, due, 1);
                return Err(Refusal::Deferred(due));
            }
        };
        // Before the circuit: a probe without a budget must not occupy the probe slot.
        let budget = self.budget.as_ref().filter(|_| !is_suspect);
        let payment = match budget.filter(|_| claimed.attempt > 1) {
            None => None,
            Some(budget) => Some(Payment::withdraw(budget, request)?),
        };
        // Last: a probe slot taken here is used at once.
        let circuit = match self.circuit.acquire(core.store.as_ref()).await {
            Ok(permit) => permit,
            Err(refused) => {
                core.counters.parked(1);
                counters.parked(1);
                let limited = self.limiter.is_some() && !is_suspect;
                return Err(Refusal::Deferred(if limited { Due::Backlog } else { Due::At(refused.until) }));
            }
        };
        if let Some(budget) = budget.filter(|_| claimed.attempt == 1) {
            budget.first_attempt();
        }
        let attempted = Attempted {
            event: claimed.event.id.as_uuid().as_u128(),
            first_at: (claimed.attempt > 1).then_some(claimed.started_at),
        };
        Ok(AttemptPermit { limiter: self.limiter.as_deref(), circuit, attempted, payment, slot })
    }

    async fn slot(&self, core: &Core, is_suspect: bool) -> Result<Option<Permit>, Due> {
        match self.limiter.as_ref().filter(|_| !is_suspect) {
            _ if self.is_paused() => Err(Due::Backlog),
            None => Ok(None),
            Some(limiter) => limiter.acquire(|| core.clock.now()).await.map(Some).ok_or(Due::Backlog),
        }
    }

    /// Counts deliveries that return to the store without an attempt charged: to the backlog, or parked until an instant.
    pub(crate) fn count_deferral(core: &Core, counters: &SubscriptionCounters, due: Due, count: usize) {
        if due == Due::Backlog {
            core.counters.backlogged(count);
            counters.backlogged(count);
        } else {
            core.counters.parked(count);
            counters.parked(count);
        }
    }

    /// When a delivery is due again that its handler snoozed, or that a consumer gave back; `None` for a real failure.
    pub(crate) fn deferred_by(&self, failure: &Failure, now: Timestamp) -> Option<Due> {
        if failure.find::<GivenBack>().is_some() {
            return Some(self.due_now(now)); // a pull queue has limits
        }
        snoozed_until(failure, now).map(Due::At)
    }

    /// The due time of a delivery that returns to the store although it could start: the backlog with limits, else now.
    pub(crate) fn due_now(&self, now: Timestamp) -> Due {
        if self.limiter.is_some() { Due::Backlog } else { Due::At(now) }
    }

    /// The circuit state that counts for the time of a retry. With limits the retry keeps its own backoff, and a circuit that is still
    /// open then moves it to the backlog.
    pub(crate) fn breaker_for_retry(&self) -> BreakerSnapshot {
        if self.limiter.is_some() { BreakerSnapshot::Closed } else { self.circuit.snapshot() }
    }

    /// Whether a failure of this class is retried on the slower delays of a receiver that is overloaded.
    pub(crate) fn is_throttled(&self, class: FailureClass) -> bool {
        class == FailureClass::Throttled { retry_after: None }
            && self.limiter.as_ref().is_some_and(|limiter| limiter.is_adaptive())
    }

    /// Whether consumers of a pull queue wait for events.
    pub(crate) fn has_demand(&self) -> bool {
        self.limiter.as_ref().is_some_and(|limiter| limiter.has_demand())
    }

    /// Whether `admit` would send every delivery to the backlog now.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        self.is_paused() || self.limiter.as_ref().is_some_and(|limiter| limiter.is_full(now))
    }

    /// Returns the number of backlog deliveries to claim now: none behind an open circuit, one probe first when it becomes half-open.
    pub(crate) fn capacity(&self, now: Timestamp) -> Capacity {
        if self.is_paused() {
            return Capacity::Full;
        }
        let Some(limiter) = &self.limiter else {
            let request = |deferrals| PrefetchRequest::unlimited(UNLIMITED_PREFETCH, deferrals);
            return self.backlog.may_exist().map_or(Capacity::Full, |seen| Capacity::Free(request(seen)));
        };
        let capacity = limiter.capacity(now);
        let Capacity::Free(request) = capacity else { return capacity };
        match self.circuit.snapshot().refuses_until() {
            None => capacity,
            Some(until) if now < until => Capacity::FreeAt(until),
            // As a rule the end of the probe wakes the backlog loop earlier.
            Some(_) => {
                request.for_a_probe().map_or(Capacity::FreeAt(now + PROBE_POLL_INTERVAL), Capacity::Free)
            }
        }
    }

    /// Counts a request before its deliveries can arrive.
    pub(crate) fn requested(&self, request: PrefetchRequest, now: Timestamp) {
        if let Some(limiter) = &self.limiter {
            limiter.requested(request, now);
        }
    }

    /// Records how many backlog deliveries the store claimed for a request.
    pub(crate) fn received(&self, request: PrefetchRequest, result: BacklogClaimed) {
        match &self.limiter {
            Some(limiter) => limiter.received(request, result),
            None if result.may_be_more => {}
            None => self.backlog.drained(request.deferrals),
        }
    }

    /// Moves the times of limiter and budget by milliseconds, after the clock was set by as many. The circuit runs on steady time.
    pub(crate) fn shift(&self, step_ms: i64) {
        if let Some(limiter) = &self.limiter {
            limiter.shift(step_ms);
        }
        if let Some(budget) = &self.budget {
            budget.shift(step_ms);
        }
    }

    /// Admits no further attempt, because the subscription was replaced or the bus shuts down.
    pub(crate) fn close(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.close();
        }
    }

    /// Stops or resumes admission. Deliveries of a paused subscription go to the backlog and are charged nothing.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.backlog.set_paused(is_paused);
        if let Some(limiter) = &self.limiter {
            limiter.pause_changed();
        }
        if !is_paused {
            self.backlog.deferred();
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.backlog.is_paused()
    }
}

/// A retry paid from the budget; refunded when dropped unspent.
struct Payment<'a> {
    budget: &'a Budget,
    is_spent: bool,
}

impl<'a> Payment<'a> {
    /// Pays for a retry at the moment it starts. So no payment has to be stored, and a process that takes over from another one needs to
    /// know nothing of it.
    fn withdraw(budget: &'a Budget, request: AdmissionRequest<'_>) -> Result<Self, Refusal> {
        let AdmissionRequest { core, claimed, name, policy, .. } = request;
        let (now, event_id) = (core.clock.now(), claimed.event.id.to_string());
        let identity = Identity::new(core.settings.seed, &event_id, name.as_str());
        let again_at = match budget.pay(now, identity.hash(claimed.attempt)) {
            BudgetSnapshot::Spent { again_at } => again_at,
            BudgetSnapshot::Granted | BudgetSnapshot::Unlimited => {
                return Ok(Payment { budget, is_spent: false });
            }
        };
        // With a deadline, ask once more right before it.
        let last = policy.deadline().map(|deadline| claimed.started_at + deadline).map(Timestamp::as_millis);
        let last = last.map(|end| Timestamp::from_millis(end - 1)).filter(|last| *last > now);
        let again_at = again_at.map(|at| last.map_or(at, |last| last.min(at)));
        let situation = Situation::new(policy, identity, claimed.attempt, Outcome::Refused, now);
        let decision = redrive_retry::decision::decide(&Situation {
            started_at: claimed.started_at,
            budget: BudgetSnapshot::Spent { again_at },
            ..situation
        });
        core.counters.budget_deferred(1);
        tracing::debug!(target: "redrive::budget", subscription = %name, ?decision, "the retry budget is spent");
        Err(match decision {
            Decision::Park { until, .. } => Refusal::Deferred(Due::At(until)),
            Decision::Dead { because } => Refusal::PastDeadline(because),
            Decision::Retry { .. } | Decision::Done => Refusal::Deferred(Due::At(now)),
        })
    }
}

impl Drop for Payment<'_> {
    fn drop(&mut self) {
        if !self.is_spent {
            self.budget.refund();
        }
    }
}

/// Permission to make one attempt. Report how it ended; dropped without a report, it counts nothing and gives back what the
/// [module](self) lists.
#[must_use = "dropping the permit means that the attempt was not made"]
pub(crate) struct AttemptPermit<'a> {
    limiter: Option<&'a Limiter>,
    circuit: CircuitPermit<'a>,
    attempted: Attempted,
    payment: Option<Payment<'a>>,
    slot: Option<Permit>,
}

impl AttemptPermit<'_> {
    /// Records that the handler of a pull queue has offered the event to its consumers.
    pub(crate) fn offer_made(&mut self) {
        if let Some(slot) = &mut self.slot {
            slot.offer_made();
        }
    }

    /// Reports that a consumer has taken the event under a lease. That says nothing about its attempt.
    pub(crate) async fn handed_over(self, store: &dyn Store) {
        self.ended(None, store).await;
    }

    /// Reports a success.
    pub(crate) async fn succeeded(self, store: &dyn Store) {
        if let Some(slot) = self.ended(Some(true), store).await {
            slot.succeeded();
        }
    }

    /// Reports a failure. A receiver that is overloaded closes the limiter for the time that it names, or else reduces the rate; it does
    /// not open the circuit.
    ///
    /// `class_of` runs rules of the user, which may panic: then the failure counts like any other.
    pub(crate) async fn failed(
        self,
        class_of: impl FnOnce() -> FailureClass,
        now: Timestamp,
        store: &dyn Store,
    ) -> FailureClass {
        let limiter = self.limiter.filter(|limiter| limiter.is_adaptive());
        let class = catch_unwind(AssertUnwindSafe(class_of));
        let wait = match (limiter, &class) {
            (Some(limiter), Ok(FailureClass::Throttled { retry_after })) => Some((limiter, *retry_after)),
            _ => None,
        };
        let slot = self.ended(wait.is_none().then_some(false), store).await; // freed after the throttle
        match (wait, slot) {
            (Some((limiter, Some(wait))), _slot) => limiter.throttle_for(Duration::from_millis(wait), now),
            (Some((_, None)), Some(slot)) => slot.throttled(now),
            _ => {}
        }
        class.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Reports the end to budget and circuit, and returns the slot. `None` says nothing to the circuit.
    async fn ended(self, succeeded: Option<bool>, store: &dyn Store) -> Option<Permit> {
        let AttemptPermit { circuit, attempted, payment, slot, .. } = self;
        if let Some(mut payment) = payment {
            payment.is_spent = true;
        }
        if let Some(succeeded) = succeeded {
            circuit.ended(attempted, succeeded, store).await;
        }
        slot
    }
}
