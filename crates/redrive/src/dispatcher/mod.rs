//! The dispatcher: claims due deliveries from the store, runs their handlers, settles the results, and sleeps until more are due.
//!
//! A delivery is claimed in one of four ways:
//!
//! - the store claims a new event or delivery in the transaction that stores it, if it is due and an in-flight slot is free;
//! - `claim_loop` claims stored deliveries at their due time: delayed, recovered or redriven ones, retries, and those that found no free
//!   slot;
//! - `backlog_loop` claims from the on-disk backlogs, where deliveries wait for a limit, a circuit breaker or the end of a pause;
//! - `run_suspects` claims crash suspects: deliveries that were running at two or more crashes and so may have ended the process.
//!
//! Claims of the first three go through one channel, the [`ClaimSink`](redrive_store::ClaimSink), to `run_claimed`, which starts a task
//! for each (`delivery`): admission, handler, decision, settlement. Crash suspects do not take that channel: `run_suspects` runs them one
//! after the other, at the start before all other claims, later after the other claims have stopped and the deliveries in flight have
//! ended (it waits at most a minute for them). A suspect whose handlers only call another process returns to the queue without an
//! attempt.
//!
//! The handler of a pull queue passes the event on to a consumer, and the delivery is settled as leased. `leases` claims it again for the
//! ack or nack of the consumer; after the end of the lease, the claim loop does.
//!
//! `heartbeat_loop` renews the lease of this process on its claims, `maintenance_loop` runs the store's own tasks, and `sync_shared_state` exchanges counts with other
//! processes.

mod attempt;
mod backlog;
mod cluster_sync;
mod delivery;
mod leases;
mod outcome;
mod routing;
mod span;
mod unhandled;
mod wall_clock;

use std::sync::Arc;
use std::time::Duration;

use redrive_store::{Claimed, StoreError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::core::{Core, Isolation, Phase};

pub(crate) use self::backlog::backlog_loop;
pub(crate) use self::cluster_sync::sync_shared_state;
pub(crate) use self::leases::{end_leases, release_in_background};
pub(crate) use self::outcome::log_recovered;
pub(crate) use self::wall_clock::follow_wall_clock;

/// Delay after a call that the store refused.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The longest wait between two failed rounds of maintenance.
const MAX_MAINTENANCE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum time that a crash suspect waits for the deliveries in flight to end before it runs.
const SUSPECT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of looking for due work on a store that only this process writes to.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Pauses and resumes dispatching of the whole bus; see [`EventBus::dispatcher`](crate::EventBus::dispatcher).
///
/// While paused, events are stored as usual and wait on disk; running handlers continue. The pause is not stored: a restarted process
/// dispatches again. [`SubscriptionHandle::pause`](crate::SubscriptionHandle::pause) pauses a single subscription.
#[derive(Clone)]
pub struct Dispatcher {
    pub(crate) core: Arc<Core>,
}

impl Dispatcher {
    /// Starts no further deliveries.
    pub fn pause(&self) {
        self.core.switch(|switch| switch.is_paused = true);
    }

    /// Dispatches again, due deliveries first.
    pub fn resume(&self) {
        self.core.switch(|switch| switch.is_paused = false);
        self.core.backlog_wakeup.notify_one();
    }

    /// Whether dispatching is paused.
    pub fn is_paused(&self) -> bool {
        self.core.switch.borrow().is_paused
    }

    /// Returns the number of deliveries that are claimed and not settled.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher")
            .field("is_paused", &self.is_paused())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

/// Runs each claimed delivery in its own task. Dropping the future cancels all of them.
pub(crate) async fn run_claimed(core: Arc<Core>, mut claims: UnboundedReceiver<Claimed>) {
    let mut deliveries = JoinSet::new();
    let mut batch = Vec::with_capacity(64);
    loop {
        tokio::select! {
            taken = claims.recv_many(&mut batch, 64) => {
                if taken == 0 {
                    return;
                }
                for claimed in batch.drain(..) {
                    deliveries.spawn(delivery::run(Arc::clone(&core), claimed, Isolation::Concurrent));
                }
            }
            // Frees ended tasks; their outcome is on disk.
            Some(ended) = deliveries.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(target: "redrive::dispatcher", %error, "a delivery was dropped; the next start recovers it");
                }
            }
        }
    }
}

/// Runs crash suspects, deliveries that ran at more than one crash of the process, one at a time and in isolation.
async fn run_suspects(core: &Arc<Core>) {
    loop {
        match core.store.claim_suspect(core.clock.now(), core.sink.clone()).await {
            Ok(Some(claimed)) => delivery::run(Arc::clone(core), claimed, Isolation::Exclusive).await,
            Ok(None) => return,
            Err(error) => back_off(core, error, "look for crash suspects").await,
        }
        if core.phase() == Phase::ShuttingDown {
            return;
        }
    }
}

/// Runs crash suspects that other processes left behind in isolation: stops claiming, waits for the deliveries in flight, runs them.
async fn run_new_suspects(core: &Arc<Core>) {
    match core.store.has_suspects(core.clock.now()).await {
        Ok(true) => {}
        other => return report(other, "look for crash suspects of other processes"),
    }
    // A handler that only calls another process cannot crash this one. Its suspects are returned to the queue at once: no need to wait.
    if core.subscriptions().all().iter().all(|subscription| subscription.is_remote_effect) {
        return run_suspects(core).await;
    }
    core.switch(|switch| switch.dispatches = false);
    let mut phase = core.phase.subscribe();
    // A handler may run for long: the wait is bounded.
    let idle = async {
        tokio::select! {
            () = core.sink.idle() => {}
            () = core.clock.sleep(SUSPECT_IDLE_TIMEOUT) => {}
        }
    };
    tokio::select! {
        () = idle => run_suspects(core).await,
        () = async { drop(phase.wait_for(|phase| *phase == Phase::ShuttingDown).await) } => return,
    }
    start_dispatching(core);
}

/// Begins to claim, unless the bus shuts down.
fn start_dispatching(core: &Core) {
    // Switch on before the check: a shutdown that begins in between switches off again.
    core.switch(|switch| switch.dispatches = true);
    core.backlog_wakeup.notify_one();
    if core.phase() == Phase::ShuttingDown {
        core.switch(|switch| switch.dispatches = false);
    }
}

/// Claims deliveries when they are due, until the bus shuts down. Runs crash suspects first.
pub(crate) async fn claim_loop(core: Arc<Core>) {
    run_suspects(&core).await;
    start_dispatching(&core);
    report(core.store.refresh_due().await, "look for due work");
    let due = core.store.due_hint();
    let (mut phase, mut switch) = (core.phase.subscribe(), core.switch.subscribe());
    let mut suspects_checked_at = core.clock.now();
    loop {
        if core.phase() == Phase::ShuttingDown {
            return;
        }
        if switch.borrow_and_update().is_paused {
            tokio::select! {
                _ = switch.changed() => {}
                _ = phase.changed() => {}
            }
            report(core.store.refresh_due().await, "look for due work");
            continue;
        }
        let now = core.clock.now();
        let poll_interval = core.store.poll_interval().unwrap_or(POLL_INTERVAL);
        // Checked on a busy bus, too, and after the clock was set back.
        if now.since(suspects_checked_at) >= poll_interval || now < suspects_checked_at {
            suspects_checked_at = now;
            run_new_suspects(&core).await;
            continue;
        }
        if core.sink.free_slots() > 0 && due.next().is_some_and(|next| next <= now) {
            // Cleared first: a later append sets the hint again, an earlier one is found by the claim.
            due.set(None);
            report(
                backlog::defer_full_subscriptions(&core, now).await,
                "defer deliveries of full subscriptions",
            );
            match core.store.claim(now).await {
                Ok(_) => report(core.store.refresh_due().await, "look for due work"),
                Err(error) => {
                    if matches!(error, StoreError::Stopped { .. }) {
                        core.waiters.clear(); // no event can finish any more
                    }
                    due.pull_forward(now + STORE_RETRY_DELAY);
                    back_off(&core, error, "claim due work").await;
                }
            }
            continue;
        }
        let wait = due.next().map_or(poll_interval, |next| next.since(now)).min(poll_interval);
        // Without a free in-flight slot nothing can be claimed, however much is due. Read once: a slot freed from here on notifies,
        // while a second read could miss it.
        let is_full = core.sink.free_slots() == 0;
        let wait = if is_full { poll_interval } else { wait.max(Duration::from_millis(1)) };
        tokio::select! {
            () = core.clock.sleep(wait) => {
                if wait == poll_interval {
                    report(core.store.refresh_due().await, "look for due work");
                }
            }
            () = due.changed() => {}
            () = core.sink.freed(), if is_full => {}
            _ = switch.changed() => {}
            _ = phase.changed() => {}
        }
    }
}

/// Sleeps in the time of the store. The leases of a shared store are in the database's time, which goes on when virtual time stands still.
async fn sleep(core: &Core, wait: Duration) {
    if core.store.is_shared() {
        tokio::time::sleep(wait).await;
    } else {
        core.clock.sleep(wait).await;
    }
}

/// Runs the store's maintenance at the intervals that it asks for.
pub(crate) async fn maintenance_loop(core: Arc<Core>) {
    let mut retry_delay = STORE_RETRY_DELAY;
    loop {
        match core.store.maintain(core.clock.now(), core.settings.retention).await {
            Ok(again) => {
                retry_delay = STORE_RETRY_DELAY;
                sleep(&core, again).await;
            }
            Err(error) => {
                report::<()>(Err(error), "maintain the store");
                sleep(&core, retry_delay).await;
                retry_delay = (retry_delay * 2).min(MAX_MAINTENANCE_RETRY_DELAY);
            }
        }
    }
}

/// Renews this process's lease on its claims at the intervals that the store asks for.
pub(crate) async fn heartbeat_loop(core: Arc<Core>) {
    loop {
        match core.store.heartbeat().await {
            Ok(Some(again)) => sleep(&core, again).await,
            Ok(None) => return,
            Err(error) => {
                report::<()>(Err(error), "send a heartbeat");
                sleep(&core, STORE_RETRY_DELAY).await;
            }
        }
    }
}

/// Logs a failed call of the store and waits before the next one.
async fn back_off(core: &Core, error: StoreError, what: &str) {
    report::<()>(Err(error), what);
    core.clock.sleep(STORE_RETRY_DELAY).await;
}

/// Logs a failed call of the store.
fn report<T>(result: Result<T, StoreError>, what: &str) {
    if let Err(error) = result {
        tracing::error!(target: "redrive::dispatcher", %error, "could not {what}");
    }
}
