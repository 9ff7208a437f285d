//! One unit of work: its handlers are called, their outcome decides, and that is settled.

use std::any::Any;
use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use redrive_retry::audit::{Level, RetryLogEntry};
use redrive_retry::planted::Planted;
use redrive_retry::{
    BreakerSnapshot, BudgetSnapshot, DeadReason, Decision, DecisionRecord, Failure, FailureClass, Identity,
    Outcome, PolicyError, RetryOverride, RetryPolicy, Situation, Timestamp,
};
use redrive_store::{
    Claimed, EventType, FailedAttempt, Finished, HELD, Recovered, Settlement, StoreError, SubscriptionName,
    SucceededAttempt, Verdict,
};
use tracing::field::{Empty, display};
use tracing::{Instrument, Span};

use crate::budget::Budget;
use crate::core::{Core, Tracking, Unmatched};
use crate::event::Event;
use crate::handler::CatchPanic;
use crate::not_now::put_off_until;
use crate::subscription::Subscription;
use crate::trace::{CURRENT, TraceContext};

use super::TRY_AGAIN;

/// How long what is owed to a subscription that is not there is put off each time.
const ORPHAN_WAIT: Duration = Duration::from_secs(15);

/// The same for what is to run alone: while it is looked at, nothing else is taken up.
const LONELY_ORPHAN_WAIT: Duration = Duration::from_secs(300);

/// How long an attempt waits that was cut short by a panic outside of its handlers.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// The longest error that is kept, in bytes.
const LONGEST_ERROR: usize = 8 << 10;

/// In what company a unit runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Among others.
    Others,
    /// Alone, because it may be what kills the process.
    Nobody,
}

/// One unit from claim to settlement.
pub(super) async fn run(core: Arc<Core>, claimed: Claimed, company: Company) {
    core.counters.dispatched(claimed.handed_over.elapsed());
    let span = span(&claimed);
    let began = Instant::now();
    // Known also if what comes after the handlers panics.
    let mut ended = Ended::default();
    let decided = {
        let mut deciding = pin!(decide(&core, &claimed, company, &mut ended).instrument(span.clone()));
        // Handlers are guarded one by one. This is for whatever else may panic: an error that cannot be shown, an audit sink.
        poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| deciding.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        })
        .await
    };
    let settlement = decided.unwrap_or_else(|panic| after_panic(&core, &claimed, panic.as_ref()));
    let Ended { handled, succeeded } = ended;
    let settlement = Settlement { handled, succeeded, ..settlement };
    if !span.is_disabled() {
        span.record("duration_ms", u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        record(&span, &settlement);
    }
    let (id, event_type) = (claimed.event.id, claimed.event.event_type.clone());
    let held = held(&claimed, &settlement);
    let settled = core.store.settle(claimed, settlement).await;
    for name in held {
        core.is_held(&name);
    }
    match settled {
        Ok(Finished::NotYet) => {}
        Ok(finished) => {
            core.counters.finished(&event_type, finished);
            core.waiters.finish(id, finished);
        }
        // It stays in processing, and the next start takes it back: one redelivery, nothing lost.
        Err(error) => {
            tracing::error!(target: "redrive::dispatcher", parent: &span, event_id = %id, %error, "could not settle");
            core.waiters.give_up(id);
        }
    }
}

/// Handlers that have ended well.
#[derive(Default)]
struct Ended {
    /// Who is not to be asked again.
    handled: Vec<SubscriptionName>,
    /// What they told.
    succeeded: Vec<SucceededAttempt>,
}

/// For whom something is held on disk by this settlement.
fn held(claimed: &Claimed, settlement: &Settlement) -> Vec<SubscriptionName> {
    let is_held = matches!(settlement.verdict, Verdict::Defer(HELD) | Verdict::Retry(HELD));
    let own = claimed.addressee.iter().filter(|_| is_held);
    let parked = settlement.parked.iter().filter(|(_, until)| *until == HELD).map(|(name, _)| name);
    own.chain(parked).cloned().collect()
}

/// A panic outside of a handler fails the attempt, without asking anybody who might panic again.
fn after_panic(core: &Core, claimed: &Claimed, panic: &(dyn Any + Send)) -> Settlement {
    let (now, error) = (core.clock.now(), Failure::panic(panic).to_string());
    tracing::error!(target: "redrive::dispatcher", event_id = %claimed.event.id, %error, "an attempt was cut short");
    let is_last = claimed.attempt >= core.policy.max_attempts();
    let failure = FailedAttempt {
        subscription: SubscriptionName::new("(dispatcher)").expect("a valid name"),
        started_at: now,
        duration_ms: 0,
        class: FailureClass::Transient,
        delay_ms: if is_last { 0 } else { AFTER_PANIC.as_secs() * 1000 },
        error,
        record: None,
        detail: None,
    };
    let verdict = if is_last {
        Verdict::Dead(DeadReason::AttemptsExhausted)
    } else {
        Verdict::Retry(now + AFTER_PANIC)
    };
    Settlement { failure: Some(failure), ..settlement(core, verdict) }
}

/// One wide span for each attempt at an event: everything that is known of it in one place.
fn span(claimed: &Claimed) -> Span {
    let event = &claimed.event;
    let span = tracing::info_span!(
        target: "redrive::event",
        "event",
        event_id = %event.id,
        event_type = %event.event_type,
        attempt = claimed.attempt,
        addressee = claimed.addressee.as_ref().map(display),
        trace_id = Empty,
        parent_span_id = Empty,
        sampled = Empty,
        handlers = Empty,
        outcome = Empty,
        failed_subscription = Empty,
        error = Empty,
        class = Empty,
        delay_ms = Empty,
        parked = Empty,
        duration_ms = Empty,
    );
    if !span.is_disabled()
        && let Some(context) = TraceContext::of(&event.metadata)
    {
        span.record("trace_id", context.trace_id());
        span.record("parent_span_id", context.span_id());
        span.record("sampled", context.is_sampled());
    }
    span
}

fn record(span: &Span, settlement: &Settlement) {
    span.record(
        "outcome",
        match settlement.verdict {
            Verdict::Done => "done",
            Verdict::Retry(_) => "retry",
            Verdict::Defer(_) => "deferred",
            Verdict::Dead(_) => "dead",
        },
    );
    span.record("parked", settlement.parked.len());
    if let Some(failure) = &settlement.failure {
        span.record("failed_subscription", failure.subscription.as_str());
        span.record("error", failure.error.as_str());
        span.record("class", display(failure.class));
        span.record("delay_ms", failure.delay_ms);
    }
}

/// Runs the handlers and decides what comes next. Those that end well are named in `ended`.
async fn decide(core: &Core, claimed: &Claimed, company: Company, ended: &mut Ended) -> Settlement {
    let matching = concerned(core, claimed.addressee.as_ref(), &claimed.event.event_type);
    Span::current().record("handlers", matching.len());
    if matching.is_empty() {
        let elsewhere = elsewhere(core, claimed, &matching).await;
        if elsewhere.is_empty() {
            return nobody_there(core, claimed, company).await;
        }
        return Settlement { parked: elsewhere, ..settlement(core, Verdict::Done) };
    }
    if core.tracking == Tracking::PerSubscription && claimed.addressee.is_none() {
        // Stored by somebody who does not know the subscriptions, such as another process: addressed now.
        let now = core.clock.now();
        let own = matching.iter().map(|subscription| (subscription.name.clone(), now));
        let parked = own.chain(elsewhere(core, claimed, &matching).await).collect();
        return Settlement { parked, ..settlement(core, Verdict::Done) };
    }
    // What other processes do cannot be what kills this one, and nothing waits for it.
    if company == Company::Nobody && matching.iter().all(|subscription| subscription.is_elsewhere) {
        let is_in_a_lane = claimed.addressee.is_some() && matching.iter().any(|all| all.lane.is_some());
        return settlement(core, Verdict::Retry(if is_in_a_lane { HELD } else { core.clock.now() }));
    }
    let policy = match policy_for(core, claimed.event.retry.as_ref(), &matching) {
        Ok(policy) => policy,
        Err(error) => {
            tracing::error!(target: "redrive::dispatcher", event_id = %claimed.event.id, %error, "using the default policy");
            Cow::Borrowed(&core.policy)
        }
    };
    if claimed.attempt > policy.max_attempts() {
        // Every attempt it had was cut short by the end of a process.
        return settlement(core, Verdict::Dead(DeadReason::AttemptsExhausted));
    }
    let (mut parked, mut is_counted) = (Vec::new(), claimed.attempt == 1);
    for subscription in &matching {
        if subscription.is_idempotent && claimed.handled.contains(&subscription.name) {
            continue;
        }
        // First of all: what is not begun is not paid for. What is to run alone does not wait.
        let lane = subscription.lane.as_ref().filter(|_| company == Company::Others);
        let _turn = match lane {
            None => None,
            Some(lane) => match lane.enter(|| core.clock.now()).await {
                Some(turn) => Some(turn),
                None => {
                    core.counters.held(1);
                    subscription.counters.held(1);
                    parked.push((subscription.name.clone(), HELD));
                    continue;
                }
            },
        };
        // Before the circuit: a probe that cannot be paid for never holds its slot.
        let payment = match pay(core, claimed, company, subscription, &policy) {
            Ok(payment) => payment,
            Err(Decision::Dead { because }) if claimed.addressee.is_some() => {
                return settlement(core, Verdict::Dead(because));
            }
            Err(held) => {
                // What is too late for one is owed to it alone, and is over without the others.
                let until = if let Decision::Park { until, .. } = held { until } else { core.clock.now() };
                parked.push((subscription.name.clone(), until));
                continue;
            }
        };
        // Asked for only when its turn has come: a probe that is never reached never holds its slot.
        let permit = match subscription.circuit.acquire(core.store.as_ref()).await {
            Ok(permit) => permit,
            Err(refused) => {
                if let Some(budget) = payment.filter(|_| claimed.attempt > 1) {
                    budget.refund();
                }
                core.counters.parked();
                subscription.counters.parked();
                if Planted::ParkedDropped.is_here() {
                    continue;
                }
                // Behind a lane nothing waits for an instant: it is called up when the circuit lets a probe through, or when another
                // circuit has taken its place.
                let until = if lane.is_some() { HELD } else { refused.until };
                parked.push((subscription.name.clone(), until));
                continue;
            }
        };
        if let Some(budget) = payment.filter(|_| claimed.attempt == 1) {
            budget.first_attempt();
        }
        if !std::mem::replace(&mut is_counted, true) {
            core.counters.retried(&claimed.event.event_type);
        }
        let started_at = core.clock.now();
        let (result, told) = call(core, claimed, subscription, &policy).await;
        match result {
            Ok(()) => {
                permit.ended(true, core.store.as_ref()).await;
                subscription.counters.done();
                // What one subscription is owed ends with its handler: nobody will ask again.
                if subscription.is_idempotent && claimed.addressee.is_none() {
                    ended.handled.push(subscription.name.clone());
                }
                ended.succeeded.extend(told.map(|detail| SucceededAttempt {
                    subscription: subscription.name.clone(),
                    started_at,
                    duration_ms: millis_since(started_at, core.clock.now()),
                    detail,
                }));
            }
            Err(failure) => {
                if let Some(until) = put_off_until(&failure, core.clock.now()) {
                    drop(permit); // it says nothing about the handler
                    if let Some(budget) = payment.filter(|_| claimed.attempt > 1) {
                        budget.refund();
                    }
                    if until == HELD {
                        core.counters.held(1);
                        subscription.counters.held(1);
                    } else {
                        core.counters.parked();
                        subscription.counters.parked();
                    }
                    parked.push((subscription.name.clone(), until));
                    continue;
                }
                permit.ended(false, core.store.as_ref()).await;
                if let (Some(lane), FailureClass::Throttled { retry_after: Some(wait) }) =
                    (&subscription.lane, policy.rules().class_of(&failure))
                {
                    lane.close_for(Duration::from_millis(wait), core.clock.now());
                }
                parked.extend(elsewhere(core, claimed, &matching).await);
                let failure = Failed { failure, told, started_at };
                return failed(core, claimed, subscription, &policy, failure, parked);
            }
        }
    }
    parked.extend(elsewhere(core, claimed, &matching).await);
    match parked.as_slice() {
        // What was parked for this one already stays parked, and is charged nothing.
        [(_, until)] if claimed.addressee.is_some() => settlement(core, Verdict::Defer(*until)),
        _ => Settlement { parked, ..settlement(core, Verdict::Done) },
    }
}

/// Whom a unit concerns: the one that it is addressed to, or all who want its type.
fn concerned(
    core: &Core,
    addressee: Option<&SubscriptionName>,
    event_type: &EventType,
) -> Vec<Arc<Subscription>> {
    let subscriptions = core.subscriptions();
    match addressee {
        None => subscriptions.matching(event_type),
        Some(name) => subscriptions.named(name.as_str()).cloned().into_iter().collect(),
    }
}

/// Who is to have the event and is not here, but in another process: it is owed to them from now on. Looked at when the handlers
/// have ended, because the answer must not be older than the decision; without one, nothing is decided.
async fn elsewhere(
    core: &Core,
    claimed: &Claimed,
    matching: &[Arc<Subscription>],
) -> Vec<(SubscriptionName, Timestamp)> {
    if claimed.addressee.is_some() {
        return Vec::new();
    }
    let there = loop {
        match core.subscribed_elsewhere(&claimed.event.event_type).await {
            Ok(there) => break there,
            Err(StoreError::Closed | StoreError::Stopped { .. }) => return Vec::new(), // nothing can be settled any more
            Err(_) => tokio::time::sleep(TRY_AGAIN).await, // whoever tries to reach the server says so
        }
    };
    let now = core.clock.now();
    let is_new = |name: &SubscriptionName| {
        !claimed.handled.contains(name) && !matching.iter().any(|subscription| subscription.name == *name)
    };
    there.into_iter().filter(is_new).map(|name| (name, now)).collect()
}

/// Pays for a retry, or says what becomes of it instead. Whoever makes it pays for it at the moment it begins: so nothing is to be
/// kept on disk of what was paid for, and a process that takes over from another one knows all that it must.
///
/// Returns the budget that is concerned, if there is one.
fn pay<'a>(
    core: &Core,
    claimed: &Claimed,
    company: Company,
    subscription: &'a Subscription,
    policy: &RetryPolicy,
) -> Result<Option<&'a Budget>, Decision> {
    let Some(budget) = &subscription.budget else { return Ok(None) };
    if company == Company::Nobody {
        return Ok(None); // put off, it would run among others later, and take them along
    }
    if claimed.attempt == 1 {
        return Ok(Some(budget));
    }
    let (now, event_id) = (core.clock.now(), claimed.event.id.to_string());
    let identity = Identity::new(core.seed, &event_id, subscription.name.as_str());
    let again_at = match budget.pay(now, identity.hash(claimed.attempt)) {
        BudgetSnapshot::Spent { again_at } => again_at,
        BudgetSnapshot::Granted | BudgetSnapshot::Unlimited => return Ok(Some(budget)),
    };
    // Who has a deadline asks once more right before it.
    let last = policy.deadline().map(|deadline| claimed.started_at + deadline).map(Timestamp::as_millis);
    let last = last.map(|end| Timestamp::from_millis(end - 1)).filter(|last| *last > now);
    let again_at = again_at.map(|at| last.map_or(at, |last| last.min(at)));
    let situation = Situation::new(policy, identity, claimed.attempt, Outcome::Refused, now);
    let decision = redrive_retry::decide(&Situation {
        started_at: claimed.started_at,
        budget: BudgetSnapshot::Spent { again_at },
        ..situation
    });
    core.counters.held_back();
    tracing::debug!(target: "redrive::budget", subscription = %subscription.name, ?decision, "the retry budget is spent");
    Err(decision)
}

fn settlement(core: &Core, verdict: Verdict) -> Settlement {
    Settlement::new(core.clock.now(), verdict)
}

async fn nobody_there(core: &Core, claimed: &Claimed, company: Company) -> Settlement {
    if let Some(name) = &claimed.addressee {
        let there = core.store.subscribed_elsewhere().await.unwrap_or_default();
        if there.iter().any(|subscription| subscription.name == *name) {
            return settlement(core, Verdict::Defer(core.clock.now())); // for who has it
        }
        core.counters.orphaned();
        let wait = if company == Company::Nobody { LONELY_ORPHAN_WAIT } else { ORPHAN_WAIT };
        return settlement(core, Verdict::Defer(core.clock.now() + wait));
    }
    core.counters.unmatched();
    match core.unmatched {
        Unmatched::Done => settlement(core, Verdict::Done),
        Unmatched::DeadLetter => {
            let now = core.clock.now();
            let error = format!("no subscription matches {}", claimed.event.event_type);
            log(
                core,
                &claimed.event.id.to_string(),
                &claimed.event.event_type,
                "",
                (claimed.attempt, 1),
                0,
                &error,
            );
            let failure = FailedAttempt {
                subscription: SubscriptionName::new("(none)").expect("a valid name"),
                started_at: now,
                duration_ms: 0,
                class: FailureClass::Permanent,
                delay_ms: 0,
                error,
                record: None,
                detail: None,
            };
            Settlement { failure: Some(failure), ..settlement(core, Verdict::Dead(DeadReason::Permanent)) }
        }
    }
}

/// The overrides of all who match, merged; then the event's own.
fn policy_for<'a>(
    core: &'a Core,
    own: Option<&RetryOverride>,
    matching: &[Arc<Subscription>],
) -> Result<Cow<'a, RetryPolicy>, PolicyError> {
    let mut overrides = matching.iter().filter_map(|subscription| subscription.retry.as_ref()).peekable();
    let merged = match overrides.peek() {
        None => Cow::Borrowed(&core.policy),
        Some(_) => Cow::Owned(RetryOverride::merge(overrides, &core.policy)?),
    };
    match own {
        None => Ok(merged),
        Some(own) => own.apply_to(&merged).map(Cow::Owned),
    }
}

async fn call(
    core: &Core,
    claimed: &Claimed,
    subscription: &Subscription,
    policy: &RetryPolicy,
) -> (Result<(), Failure>, Option<String>) {
    let told = Arc::<Mutex<Option<String>>>::default();
    let timeout =
        policy.attempt_timeout().map_or(subscription.timeout, |most| most.min(subscription.timeout));
    let event = Event {
        stored: Arc::clone(&claimed.event),
        subscription: subscription.name.clone(),
        attempt: claimed.attempt,
        max_attempts: policy.max_attempts(),
        deadline: core.clock.now() + timeout,
        clock: core.clock.clone(),
        told: Arc::clone(&told),
    };
    let (context, began) = (event.trace_context(), Instant::now());
    // Making the future runs the handler's own code, too, so a panic there is caught as well.
    let handler = Arc::clone(&subscription.handler);
    let handling = CatchPanic { future: Box::pin(async move { handler.handle(event).await }) };
    let handling = async {
        match context {
            // What the handler publishes belongs to the same trace.
            Some(context) => CURRENT.scope(context, handling).await,
            None => handling.await,
        }
    };
    let result = tokio::select! {
        biased;
        result = handling => result,
        () = core.clock.sleep(timeout) => Err(Failure::timeout(timeout)),
    };
    let took = began.elapsed();
    core.counters.handled(took);
    subscription.counters.handled(took);
    let told = told.lock().unwrap_or_else(PoisonError::into_inner).take();
    (result, told)
}

fn millis_since(start: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.since(start).as_millis()).unwrap_or(u64::MAX)
}

/// Writes the specified entry for a failed attempt.
fn log(
    core: &Core,
    event_id: &str,
    event_type: &EventType,
    subscription_id: &str,
    (attempt, max_attempts): (u32, u32),
    delay_ms: u64,
    error: &str,
) {
    let entry = RetryLogEntry {
        level: Level::Warn,
        event_id: event_id.to_owned(),
        event_type: event_type.to_string(),
        subscription_id: subscription_id.to_owned(),
        attempt,
        max_attempts,
        delay_ms,
        error: error.to_owned(),
    };
    if let Err(error) = core.audit.log(&entry) {
        tracing::error!(target: "redrive::audit", %error, ?entry, "a retry log entry was not taken in");
    }
}

/// The entry for an attempt that ended with the process. An event that several subscriptions share names none of them.
pub(crate) fn log_recovered(core: &Core, unit: &Recovered) {
    let matching = concerned(core, unit.addressee.as_ref(), &unit.event_type);
    let policy = policy_for(core, None, &matching).unwrap_or(Cow::Borrowed(&core.policy));
    let subscription_id = match matching.as_slice() {
        [only] => only.id.as_str(),
        _ => "",
    };
    let attempts = (unit.attempt, policy.max_attempts());
    log(core, &unit.id.to_string(), &unit.event_type, subscription_id, attempts, 0, &unit.error);
}

/// An error as it is kept: whole, unless it is very long.
fn text_of(failure: &Failure) -> String {
    let mut text = failure.to_string();
    if text.len() > LONGEST_ERROR {
        let whole = text.len();
        text.truncate(text.floor_char_boundary(LONGEST_ERROR));
        text.push_str(&format!("… ({whole} bytes)"));
    }
    text
}

/// An attempt that has failed.
struct Failed {
    failure: Failure,
    told: Option<String>,
    started_at: Timestamp,
}

fn failed(
    core: &Core,
    claimed: &Claimed,
    subscription: &Subscription,
    policy: &RetryPolicy,
    Failed { failure, told, started_at }: Failed,
    parked: Vec<(SubscriptionName, Timestamp)>,
) -> Settlement {
    let now = core.clock.now();
    let class = policy.rules().class_of(&failure);
    let event_id = claimed.event.id.to_string();
    // An event that several subscriptions share is not held up by the circuit of one of them. And what has a lane waits for its own
    // time only: if the circuit is still open then, it is held, until that circuit or another one lets it through.
    let breaker = match claimed.addressee {
        Some(_) if subscription.lane.is_none() => subscription.circuit.snapshot(),
        _ => BreakerSnapshot::Closed,
    };
    let identity = Identity::new(core.seed, &event_id, subscription.name.as_str());
    let situation = Situation::new(policy, identity, claimed.attempt, Outcome::Failed(class), now);
    let record = DecisionRecord::decide(Situation { started_at: claimed.started_at, breaker, ..situation });
    let (verdict, delay_ms) = match record.decision() {
        Decision::Retry { at, delay_ms, .. } => (Verdict::Retry(at), delay_ms),
        Decision::Dead { because } => (Verdict::Dead(because), 0),
        Decision::Done | Decision::Park { .. } => {
            unreachable!("a failed attempt is retried or given up: who tries again pays for it then")
        }
    };
    let error = text_of(&failure);
    let attempts = (claimed.attempt, policy.max_attempts());
    log(core, &event_id, &claimed.event.event_type, &subscription.id, attempts, delay_ms, &error);
    let is_dead = matches!(verdict, Verdict::Dead(_));
    subscription.counters.failed(is_dead);
    Settlement {
        failure: Some(FailedAttempt {
            subscription: subscription.name.clone(),
            started_at,
            duration_ms: millis_since(started_at, now),
            class,
            delay_ms,
            error,
            record: serde_json::to_string(&record).ok(),
            detail: told,
        }),
        // A retry asks everybody again. What dies here is still owed to those who were skipped.
        parked: if is_dead { parked } else { Vec::new() },
        ..Settlement::new(now, verdict)
    }
}
