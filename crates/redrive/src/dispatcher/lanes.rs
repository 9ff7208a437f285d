//! Calls up what is held for the subscriptions that have room for it.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_store::{Call, CalledUp};

use crate::core::Core;
use crate::lane::{Lane, Room, Wanted};
use crate::subscription::{Holding, Subscription};

use super::{TRY_AGAIN, report};

/// How long to wait where everything that may be under way is.
const NO_ROOM: Duration = Duration::from_millis(10);

/// How often to look for what others have held: processes that share the store, or one that has died.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// So many are called up at once for one that has no limits any more.
const WITHOUT_LIMITS: usize = 256;

/// How often to look whether what was to try a circuit is still on its way.
const PROBE_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn keep_lanes(core: Arc<Core>) {
    let mut looked = core.clock.now();
    loop {
        let now = core.clock.now();
        let is_time = core.store.is_shared() && (now.since(looked) >= LOOK_AGAIN || now < looked);
        if is_time {
            looked = now;
        }
        let mut next: Option<Timestamp> = core.store.is_shared().then_some(looked + LOOK_AGAIN);
        if is_time {
            for subscription in core.subscriptions().iter() {
                match &subscription.lane {
                    Some(lane) => lane.look_again(),
                    None => subscription.holding.put(),
                }
            }
        }
        if let Some(at) = call_up(&core).await {
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        let sleep = async {
            match next {
                Some(at) => core.clock.sleep(at.since(core.clock.now()).max(Duration::from_millis(1))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = core.room.notified() => {}
            () = sleep => {}
        }
    }
}

/// What would be refused is not called up. When its time has come one goes first, and the others follow if it succeeds.
fn behind_circuit(subscription: &Subscription, room: Room, now: Timestamp) -> Room {
    let Room::For(wanted) = room else { return room };
    match subscription.breaker().refuses_until() {
        None => room,
        Some(until) if now < until => Room::At(until),
        // As a rule the end of the one that is there is heard of before.
        Some(_) => wanted.for_a_probe().map_or(Room::At(now + PROBE_WAIT), Room::For),
    }
}

/// Nobody knows what is there.
const NOTHING: CalledUp = CalledUp { claimed: 0, may_be_more: true };

/// For whom something is called up.
enum Wanting<'a> {
    Lane(&'a Lane, Wanted),
    Unlimited(&'a Holding, u64),
}

impl Wanting<'_> {
    fn called(&self, called: CalledUp) {
        match self {
            Wanting::Lane(lane, wanted) => lane.called(*wanted, called),
            Wanting::Unlimited(holding, put) if !called.may_be_more => holding.found_all(*put),
            Wanting::Unlimited(..) => {}
        }
    }
}

/// For all that have room, until none has. Says when to look again, if that is known.
async fn call_up(core: &Core) -> Option<Timestamp> {
    loop {
        if !core.gate.is_open() {
            return None; // whoever opens it says so
        }
        let (now, subscriptions) = (core.clock.now(), core.subscriptions());
        let (mut wanting, mut calls, mut next) = (Vec::new(), Vec::new(), None::<Timestamp>);
        for subscription in subscriptions.iter() {
            let Some(lane) = &subscription.lane else {
                if let Some(put) = subscription.holding.may_be() {
                    calls.push(Call { name: subscription.name.clone(), most: WITHOUT_LIMITS });
                    wanting.push(Wanting::Unlimited(&subscription.holding, put));
                }
                continue;
            };
            match behind_circuit(subscription, lane.room(now), now) {
                Room::For(wanted) => {
                    calls.push(Call { name: subscription.name.clone(), most: wanted.most });
                    lane.call(wanted, now);
                    wanting.push(Wanting::Lane(lane, wanted));
                }
                Room::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
                Room::Full => {}
            }
        }
        if calls.is_empty() {
            return next;
        }
        let called = match core.store.call_up(calls, now).await {
            Ok(called) => called,
            Err(error) => {
                wanting.iter().for_each(|wanting| wanting.called(NOTHING));
                report::<()>(Err(error), "call up what is held");
                return Some(now + TRY_AGAIN);
            }
        };
        wanting.iter().zip(&called).for_each(|(wanting, called)| wanting.called(*called));
        // Whoever got something wants less the next time, so that the others come to their turn.
        let is_stuck = called.iter().all(|called| called.claimed == 0);
        if is_stuck && called.iter().any(|called| called.may_be_more) {
            return Some(now + NO_ROOM);
        }
    }
}
