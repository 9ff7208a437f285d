//! Calls up what is held for the subscriptions that have room for it.

use std::sync::Arc;
use std::time::Duration;

use redrive_retry::Timestamp;

use crate::core::Core;
use crate::lane::{Lane, Room};

use super::{TRY_AGAIN, report};

/// How often to look for what others have held: processes that share the store, or one that has died.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub(crate) async fn keep_lanes(core: Arc<Core>) {
    let mut looked = core.clock.now();
    loop {
        let now = core.clock.now();
        let is_time = core.store.is_shared() && (now.since(looked) >= LOOK_AGAIN || now < looked);
        if is_time {
            looked = now;
        }
        let mut next: Option<Timestamp> = core.store.is_shared().then_some(looked + LOOK_AGAIN);
        for subscription in core.subscriptions().iter() {
            let Some(lane) = &subscription.lane else { continue };
            if is_time {
                lane.look_again();
            }
            if let Some(at) = call_up(&core, subscription.name(), lane).await {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
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

/// Says when to look again, if that is known.
async fn call_up(core: &Core, name: &redrive_store::SubscriptionName, lane: &Lane) -> Option<Timestamp> {
    loop {
        let now = core.clock.now();
        let call = match lane.room(now) {
            Room::For(call) => call,
            Room::At(at) => return Some(at),
            Room::Full => return None,
        };
        match core.store.call_up(name.clone(), call.most, now).await {
            Ok(called) => lane.called(call, called, now),
            Err(error) => {
                report::<()>(Err(error), "call up what is held");
                return Some(now + TRY_AGAIN);
            }
        }
    }
}
