//! Brings work to its handlers: takes it in, runs it, settles it, and sleeps until more is due.

mod budgets;
mod circuits;
mod lanes;
mod touch;
mod unit;

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_store::{Claimed, StoreError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::core::{Core, Phase};

use self::unit::Company;

pub(crate) use self::lanes::keep_lanes;
pub(crate) use self::touch::keep_in_touch;
pub(crate) use self::unit::log_recovered;

/// How long to wait after the store has refused something.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What is to run alone waits at most so long for what is under way.
const LONGEST_IDLE_WAIT: Duration = Duration::from_secs(60);

/// How often to look for due work where nobody but this process can have put it there.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Holds dispatching up and lets it go on; see [`EventBus::dispatcher`](crate::EventBus::dispatcher).
///
/// While it is held up, events are stored as ever and wait on disk; what is being handled goes on. It is not on record: after
/// a restart everything is dispatched again.
#[derive(Clone)]
pub struct Dispatcher {
    core: Arc<Core>,
}

impl Dispatcher {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Dispatcher { core }
    }

    /// Hands out no more work.
    pub fn pause(&self) {
        self.core.gate.pause(true, &self.core.store, &self.core.sink);
        self.core.is_paused.send_replace(true);
    }

    /// Goes on, with what is due by now first.
    pub fn resume(&self) {
        self.core.gate.pause(false, &self.core.store, &self.core.sink);
        self.core.room.notify_one();
        self.core.is_paused.send_replace(false);
    }

    /// Whether it is held up.
    pub fn is_paused(&self) -> bool {
        *self.core.is_paused.borrow()
    }

    /// How many units of work are being handled or settled.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight - self.core.sink.room()
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
                    units.spawn(unit::run(Arc::clone(&core), claimed, Company::Others));
                }
            }
            // Only to forget tasks that have ended; their outcome is on disk.
            Some(ended) = units.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(target: "redrive::dispatcher", %error, "an event was dropped; it goes on at the next start");
                }
            }
        }
    }
}

/// Runs alone, one after the other, what was running at more than one death of the process.
async fn run_suspects(core: &Arc<Core>) {
    loop {
        match core.store.claim_suspect(core.clock.now(), core.sink.clone()).await {
            Ok(Some(claimed)) => unit::run(Arc::clone(core), claimed, Company::Nobody).await,
            Ok(None) => return,
            Err(error) => {
                report::<()>(Err(error), "look for what may have killed the process");
                core.clock.sleep(TRY_AGAIN).await;
            }
        }
        if core.phase() == Phase::ShuttingDown {
            return;
        }
    }
}

/// What other processes left behind that died over it runs alone, too: nothing is taken up meanwhile, and what is under way ends
/// first.
async fn run_new_suspects(core: &Arc<Core>) {
    match core.store.has_suspects(core.clock.now()).await {
        Ok(true) => {}
        other => return report(other, "look for what may have killed other processes"),
    }
    // What is done elsewhere cannot be what kills a process, and is given back at once: nobody has to end first.
    if core.subscriptions().iter().all(|subscription| subscription.is_elsewhere) {
        return run_suspects(core).await;
    }
    core.gate.dispatch(false, &core.store, &core.sink);
    let mut phase = core.phase.subscribe();
    // Whoever has fetched something may keep it for hours; the others do not wait so long for it.
    let idle = async { drop(tokio::time::timeout(LONGEST_IDLE_WAIT, core.sink.idle()).await) };
    tokio::select! {
        () = idle => run_suspects(core).await,
        () = async { drop(phase.wait_for(|phase| *phase == Phase::ShuttingDown).await) } => return,
    }
    // Opened before it is looked: whoever shuts down meanwhile closes it for good.
    core.gate.dispatch(true, &core.store, &core.sink);
    core.room.notify_one();
    if core.phase() == Phase::ShuttingDown {
        core.gate.dispatch(false, &core.store, &core.sink);
    }
}

/// Claims what is due when it is due.
pub(crate) async fn keep_time(core: Arc<Core>) {
    run_suspects(&core).await;
    core.gate.dispatch(true, &core.store, &core.sink);
    core.room.notify_one();
    if core.phase() == Phase::ShuttingDown {
        return core.gate.dispatch(false, &core.store, &core.sink);
    }
    report(core.store.refresh_due().await, "look for due work");
    let due = core.store.due_hint();
    let (mut phase, mut is_paused) = (core.phase.subscribe(), core.is_paused.subscribe());
    let mut looked = core.clock.now();
    loop {
        if core.phase() == Phase::ShuttingDown {
            return;
        }
        if *is_paused.borrow_and_update() {
            tokio::select! {
                _ = is_paused.changed() => {}
                _ = phase.changed() => {}
            }
            report(core.store.refresh_due().await, "look for due work");
            continue;
        }
        let now = core.clock.now();
        let longest = core.store.look_again().unwrap_or(LOOK_AGAIN);
        // However much there is to do otherwise; and also if the clock was set back since.
        if now.since(looked) >= longest || now < looked {
            looked = now;
            run_new_suspects(&core).await;
            continue;
        }
        if core.sink.room() > 0 && due.next().is_some_and(|next| next <= now) {
            // Forgotten first: what is stored from here on is heard of, what was stored before is found.
            due.set(None);
            report(hold(&core, now).await, "hold what finds no room");
            match core.store.claim(now).await {
                Ok(_) => report(core.store.refresh_due().await, "look for due work"),
                Err(error) => {
                    if matches!(error, StoreError::Stopped { .. }) {
                        core.waiters.clear(); // nothing will come to its end any more
                    }
                    due.pull_forward(now + TRY_AGAIN);
                    report::<()>(Err(error), "claim due work");
                    core.clock.sleep(TRY_AGAIN).await;
                }
            }
            continue;
        }
        let wait = due.next().map_or(longest, |next| next.since(now)).min(longest);
        // Without room there is nothing to claim before some is freed, however much is due. Looked at once: room that is freed
        // from here on is heard of, and whoever looked again could sleep through it.
        let is_full = core.sink.room() == 0;
        let wait = if is_full { longest } else { wait.max(Duration::from_millis(1)) };
        tokio::select! {
            () = core.clock.sleep(wait) => {
                if wait == longest {
                    report(core.store.refresh_due().await, "look for due work");
                }
            }
            () = due.changed() => {}
            () = core.sink.freed(), if is_full => {}
            _ = is_paused.changed() => {}
            _ = phase.changed() => {}
        }
    }
}

/// What is due to subscriptions that are full waits on disk, and is not claimed first.
async fn hold(core: &Core, now: Timestamp) -> Result<(), StoreError> {
    let subscriptions = core.subscriptions();
    let full = subscriptions.iter().filter(|all| all.lane.as_ref().is_some_and(|lane| lane.is_full(now)));
    let full: Vec<_> = full.collect();
    if full.is_empty() {
        return Ok(());
    }
    let names = full.iter().map(|subscription| subscription.name.clone()).collect();
    let held = match core.store.hold(names, now).await {
        Ok(held) => held,
        Err(error) => {
            // It may have been done all the same.
            full.iter().for_each(|subscription| core.is_held(&subscription.name));
            return Err(error);
        }
    };
    for (subscription, count) in full.into_iter().zip(held).filter(|(_, count)| *count > 0) {
        core.counters.held(count);
        subscription.counters.held(count);
        core.is_held(&subscription.name);
    }
    Ok(())
}

/// Waits before the store is asked again to keep order. Who shares it has a lease, by the database's time: it must be renewed in
/// real time, however the bus's own clock goes or stands still.
async fn pause(core: &Core, wait: Duration) {
    if core.store.is_shared() {
        tokio::time::sleep(wait).await;
    } else {
        core.clock.sleep(wait).await;
    }
}

/// Keeps the store in order, as often as it wants.
pub(crate) async fn keep_order(core: Arc<Core>) {
    let mut try_again = TRY_AGAIN;
    loop {
        match core.store.maintain(core.clock.now(), core.retention).await {
            Ok(again) => {
                try_again = TRY_AGAIN;
                pause(&core, again).await;
            }
            Err(error) => {
                report::<()>(Err(error), "keep the store in order");
                pause(&core, try_again).await;
                try_again = (try_again * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// Says that this process lives, as often as the store wants to hear it.
pub(crate) async fn keep_alive(core: Arc<Core>) {
    loop {
        match core.store.heartbeat().await {
            Ok(Some(again)) => pause(&core, again).await,
            Ok(None) => return,
            Err(error) => {
                report::<()>(Err(error), "say that this process lives");
                pause(&core, TRY_AGAIN).await;
            }
        }
    }
}

fn report<T>(result: Result<T, StoreError>, what: &str) {
    if let Err(error) = result {
        tracing::error!(target: "redrive::dispatcher", %error, "could not {what}");
    }
}
