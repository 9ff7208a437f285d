//! Brings work to its handlers: takes it in, runs it, settles it, and sleeps until more is due.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::audit::RetryLogEntry;
use redrive_retry::{
    BreakerSnapshot, DeadReason, Decision, DecisionRecord, Failure, FailureClass, Identity, Outcome,
    RetryOverride, RetryPolicy, Situation, Timestamp,
};
use redrive_store::{Claimed, FailedAttempt, Finished, Settlement, StoreError, SubscriptionName, Verdict};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::core::{Core, Phase, Unmatched};
use crate::event::Event;
use crate::handler::CatchPanic;
use crate::metrics::add;
use crate::subscription::Subscription;

/// How often to look for work that another process has put there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long what is owed to a subscription that is not there is put off each time.
const ORPHAN_WAIT: Duration = Duration::from_secs(5);

/// How often finished events are cleaned up, and how many at a time.
const CLEAN_UP_EVERY: Duration = Duration::from_secs(60);
const CLEAN_UP_BATCH: u32 = 1000;

/// Takes claimed work in and runs each unit as a task of its own. Dropping the future cancels all of them.
pub(crate) async fn take_in(core: Arc<Core>, mut claims: UnboundedReceiver<Claimed>) {
    let mut units = JoinSet::new();
    let mut batch = Vec::with_capacity(64);
    loop {
        tokio::select! {
            taken = claims.recv_many(&mut batch, 64) => {
                if taken == 0 {
                    return;
                }
                for claimed in batch.drain(..) {
                    units.spawn(run(Arc::clone(&core), claimed));
                }
            }
            // Only to forget tasks that have ended; their outcome is on disk.
            Some(_) = units.join_next() => {}
        }
    }
}

/// Runs alone, one after the other, what was running at more than one death of the process.
async fn run_suspects(core: &Arc<Core>) {
    loop {
        match core.store.claim_suspect(core.clock.now(), core.sink.clone()).await {
            Ok(Some(claimed)) => run(Arc::clone(core), claimed).await,
            Ok(None) => return,
            Err(error) => return report::<()>(Err(error), "look for what may have killed the process"),
        }
    }
}

/// Claims what is due when it is due, and cleans up now and then.
pub(crate) async fn keep_time(core: Arc<Core>) {
    run_suspects(&core).await;
    core.store.attach(core.sink.clone());
    report(core.store.refresh_due().await, "look for due work");
    let due = core.store.due_hint();
    let mut phase = core.phase.subscribe();
    let mut cleaned_at = core.clock.now();
    loop {
        if core.phase() == Phase::ShuttingDown {
            return;
        }
        let now = core.clock.now();
        if core.sink.room() > 0 && due.next().is_some_and(|next| next <= now) {
            // Forgotten first: what is stored from here on is heard of, what was stored before is found.
            due.set(None);
            match core.store.claim(now).await {
                Ok(_) => report(core.store.refresh_due().await, "look for due work"),
                Err(error) => {
                    due.pull_forward(now + LOOK_AGAIN);
                    report::<()>(Err(error), "claim due work");
                    core.clock.sleep(LOOK_AGAIN).await;
                }
            }
            continue;
        }
        let wait = due.next().map_or(LOOK_AGAIN, |next| next.since(now)).min(LOOK_AGAIN);
        // Without room there is nothing to claim before some is freed, however much is due.
        let wait = if core.sink.room() == 0 { LOOK_AGAIN } else { wait.max(Duration::from_millis(1)) };
        tokio::select! {
            () = core.clock.sleep(wait) => {
                if wait == LOOK_AGAIN {
                    report(core.store.refresh_due().await, "look for due work");
                }
            }
            () = due.changed() => {}
            () = core.sink.freed(), if core.sink.room() == 0 => {}
            _ = phase.changed() => {}
        }
        if core.clock.now().since(cleaned_at) >= CLEAN_UP_EVERY {
            cleaned_at = core.clock.now();
            clean_up(&core).await;
        }
    }
}

async fn clean_up(core: &Core) {
    let Some(retention) = core.retention else { return };
    let before = core.clock.now().as_millis() - i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    loop {
        match core.store.purge_done(Timestamp::from_millis(before), CLEAN_UP_BATCH).await {
            Ok(purged) if purged < u64::from(CLEAN_UP_BATCH) => return,
            Ok(_) => {}
            Err(error) => return report::<()>(Err(error), "clean up"),
        }
    }
}

fn report<T>(result: Result<T, StoreError>, what: &str) {
    if let Err(error) = result {
        tracing::error!(target: "redrive::dispatcher", %error, "could not {what}");
    }
}

/// One unit from claim to settlement.
async fn run(core: Arc<Core>, claimed: Claimed) {
    let id = claimed.event.id;
    let settlement = decide_unit(&core, &claimed).await;
    let (attempt, event_type) = (claimed.attempt, claimed.event.event_type.clone());
    for _ in &settlement.parked {
        add(&core.counters.parked, 1);
    }
    match core.store.settle(claimed, settlement).await {
        Ok(finished) => {
            match finished {
                Finished::NotYet => return,
                Finished::Done => {
                    add(&core.counters.done, 1);
                    core.counters.of_type(&event_type, |metrics| match attempt {
                        1 => metrics.done_at_once += 1,
                        _ => metrics.done_after_retry += 1,
                    });
                }
                Finished::Dead => {
                    add(&core.counters.dead, 1);
                    core.counters.of_type(&event_type, |metrics| {
                        metrics.dead += 1;
                        metrics.dead_after_retry += u64::from(attempt > 1);
                    });
                }
            }
            core.waiters.finish(id, finished);
        }
        // It stays in processing, and the next start takes it back: one redelivery, nothing lost.
        Err(error) => {
            tracing::error!(target: "redrive::dispatcher", event_id = %id, %error, "could not settle");
        }
    }
}

/// Runs the handlers and decides what comes next.
async fn decide_unit(core: &Core, claimed: &Claimed) -> Settlement {
    let matching = match &claimed.addressee {
        None => core.matching(&claimed.event.event_type),
        Some(name) => core.subscriptions().iter().filter(|s| s.name == *name).cloned().collect(),
    };
    if matching.is_empty() {
        return nobody_there(core, claimed);
    }
    let policy = match policy_for(core, claimed, &matching) {
        Ok(policy) => policy,
        Err(error) => {
            tracing::error!(target: "redrive::dispatcher", event_id = %claimed.event.id, %error, "using the default policy");
            core.policy.clone()
        }
    };
    if claimed.attempt > policy.max_attempts() {
        // Every attempt it had was cut short by the end of a process.
        return settlement(core, Verdict::Dead(DeadReason::AttemptsExhausted));
    }
    if claimed.attempt > 1 {
        core.counters.of_type(&claimed.event.event_type, |metrics| metrics.retries += 1);
    }
    let mut parked = Vec::new();
    for subscription in &matching {
        // Asked for only when its turn has come: a probe that is never reached never holds its slot.
        let permit = match subscription.breaker.acquire() {
            Ok(permit) => permit,
            Err(refused) => {
                parked.push((subscription.name.clone(), refused.until));
                continue;
            }
        };
        let started_at = core.clock.now();
        match call(core, claimed, subscription, policy.max_attempts()).await {
            Ok(()) => permit.success(),
            Err(failure) => {
                permit.failure();
                return failed(core, claimed, subscription, &policy, &failure, started_at, parked);
            }
        }
    }
    match parked.as_slice() {
        // What was parked for this one already stays parked, and is charged nothing.
        [(_, until)] if claimed.addressee.is_some() => settlement(core, Verdict::Defer(*until)),
        _ => Settlement { parked, ..settlement(core, Verdict::Done) },
    }
}

fn settlement(core: &Core, verdict: Verdict) -> Settlement {
    Settlement { at: core.clock.now(), verdict, failure: None, parked: Vec::new() }
}

fn nobody_there(core: &Core, claimed: &Claimed) -> Settlement {
    if claimed.addressee.is_some() {
        add(&core.counters.orphaned, 1);
        return settlement(core, Verdict::Defer(core.clock.now() + ORPHAN_WAIT));
    }
    add(&core.counters.unmatched, 1);
    match core.unmatched {
        Unmatched::Done => settlement(core, Verdict::Done),
        Unmatched::DeadLetter => {
            let now = core.clock.now();
            let failure = FailedAttempt {
                subscription: SubscriptionName::new("(none)").expect("a valid name"),
                started_at: now,
                duration_ms: 0,
                class: FailureClass::Permanent,
                delay_ms: 0,
                error: format!("no subscription matches {}", claimed.event.event_type),
                record: None,
            };
            Settlement { failure: Some(failure), ..settlement(core, Verdict::Dead(DeadReason::Permanent)) }
        }
    }
}

/// The overrides of all who match, merged; then the event's own.
fn policy_for(
    core: &Core,
    claimed: &Claimed,
    matching: &[Arc<Subscription>],
) -> Result<RetryPolicy, redrive_retry::PolicyError> {
    let mut overrides = matching.iter().filter_map(|subscription| subscription.retry.as_ref()).peekable();
    let merged = match overrides.peek() {
        None => core.policy.clone(),
        Some(_) => RetryOverride::merge(overrides, &core.policy)?,
    };
    claimed.event.retry.as_ref().map_or(Ok(merged.clone()), |own| own.apply_to(&merged))
}

async fn call(
    core: &Core,
    claimed: &Claimed,
    subscription: &Subscription,
    max_attempts: u32,
) -> Result<(), Failure> {
    add(&core.counters.attempts, 1);
    let event = Event {
        stored: Arc::clone(&claimed.event),
        subscription: subscription.name.clone(),
        attempt: claimed.attempt,
        max_attempts,
        deadline: core.clock.now() + subscription.timeout,
    };
    // Making the future runs the handler's own code, too, so a panic there is caught as well.
    let handler = Arc::clone(&subscription.handler);
    let handling = CatchPanic { future: Box::pin(async move { handler.handle(event).await }) };
    tokio::select! {
        biased;
        result = handling => result,
        () = core.clock.sleep(subscription.timeout) => Err(Failure::timeout(subscription.timeout)),
    }
}

fn failed(
    core: &Core,
    claimed: &Claimed,
    subscription: &Subscription,
    policy: &RetryPolicy,
    failure: &Failure,
    started_at: Timestamp,
    parked: Vec<(SubscriptionName, Timestamp)>,
) -> Settlement {
    let now = core.clock.now();
    let class = policy.rules().class_of(failure);
    let event_id = claimed.event.id.to_string();
    // An event that several subscriptions share is not held up by the circuit of one of them.
    let breaker = match claimed.addressee {
        Some(_) => subscription.breaker.snapshot(),
        None => BreakerSnapshot::Closed,
    };
    let identity = Identity::new(core.seed, &event_id, subscription.name.as_str());
    let situation = Situation::new(policy, identity, claimed.attempt, Outcome::Failed(class), now);
    let record = DecisionRecord::decide(Situation { started_at: claimed.started_at, breaker, ..situation });
    let (verdict, delay_ms) = match record.decision() {
        Decision::Retry { at, delay_ms, .. } => (Verdict::Retry(at), delay_ms),
        Decision::Dead { because } => (Verdict::Dead(because), 0),
        Decision::Done | Decision::Park { .. } => {
            unreachable!("a failed attempt without a budget is retried or given up")
        }
    };
    let error = failure.to_string();
    let entry = RetryLogEntry {
        level: redrive_retry::audit::Level::Warn,
        event_id,
        event_type: claimed.event.event_type.to_string(),
        subscription_id: subscription.id.clone(),
        attempt: claimed.attempt,
        max_attempts: policy.max_attempts(),
        delay_ms,
        error: error.clone(),
    };
    if let Err(error) = core.audit.log(&entry) {
        tracing::error!(target: "redrive::audit", %error, ?entry, "a retry log entry was not taken in");
    }
    let is_dead = matches!(verdict, Verdict::Dead(_));
    Settlement {
        at: now,
        verdict,
        failure: Some(FailedAttempt {
            subscription: subscription.name.clone(),
            started_at,
            duration_ms: u64::try_from(now.since(started_at).as_millis()).unwrap_or(u64::MAX),
            class,
            delay_ms,
            error,
            record: serde_json::to_string(&record).ok(),
        }),
        // A retry asks everybody again. What dies here is still owed to those who were skipped.
        parked: if is_dead { parked } else { Vec::new() },
    }
}
