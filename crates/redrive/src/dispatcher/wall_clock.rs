//! Follows the machine's wall clock when it is set, on disk and in memory.

use std::sync::Arc;

use redrive_retry::internal::WallWatch;

use crate::core::Core;

use super::report;

/// Smaller corrections of the clock move nothing: a server's clock is corrected by milliseconds at every heartbeat.
const MIN_STEP_MS: i64 = 1000;

/// Compares the store's clock with the wall clock, and moves limiters and budgets when the clock was set.
pub(crate) async fn follow_wall_clock(core: Arc<Core>) {
    let (mut watch, mut offset_ms) = (WallWatch::new(&core.clock), core.clock.offset_ms());
    loop {
        report(core.store.follow_wall_clock().await, "follow the machine's clock");
        let step_ms = core.clock.offset_ms() - offset_ms;
        if step_ms.abs() > MIN_STEP_MS {
            offset_ms += step_ms;
            core.subscriptions().all().iter().for_each(|one| one.admission.shift(step_ms));
            core.backlog_wakeup.notify_one();
        }
        watch.next_check().await;
    }
}
