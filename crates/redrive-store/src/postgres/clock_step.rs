//! Moves work that was written in the future, because the database's clock was set back or a standby with a clock behind was promoted:
//! its wait is counted from now on. The leader does it when its leadership starts, which a step back by more than its lease causes,
//! and again at every heartbeat interval until each process must have measured the time anew.
//!
//! Events that wait for a date keep it.

use std::time::Duration;

use super::{Shared, database_time, leader, rows};
use crate::error::StoreError;

/// Work that waits, of an event that was due when it was written or that has failed, and was written later than now.
macro_rules! rewind {
    ($table:literal) => {
        concat!(
            "WITH moved AS (
               UPDATE redrive.",
            $table,
            " u SET due_at = t.now + u.due_at - u.updated_at, updated_at = t.now,
                 ready_at = CASE WHEN u.ready_at < 0 THEN u.ready_at ELSE greatest(t.now + u.due_at - u.updated_at, 0) END
               FROM (SELECT redrive.now_ms() AS now) t
               WHERE u.ready_at BETWEEN -1 AND 8999999999999999 AND u.updated_at BETWEEN t.now + 1000 AND 8999999999999999
               AND (u.status = 2 OR u.due_at <= u.updated_at) RETURNING 1)
             SELECT count(*) FROM moved"
        )
    };
}

const REWIND: [&str; 2] = [rewind!("event"), rewind!("delivery")];

/// Moves such work after each start of a leadership, `led_for` ago.
pub(super) async fn rewind(shared: &Shared, led_for: Duration) -> Result<(), StoreError> {
    let interval = shared.heartbeat_interval();
    if !shared.leader_tasks.should_rewind(led_for, interval) {
        return Ok(());
    }
    let session = shared.pool.get().await?;
    shared.time.set(database_time::measure(&session).await?);
    let mut moved = 0;
    for statement in REWIND {
        let found = leader::as_leader(shared, &session, statement, &[]).await?;
        moved += found.and_then(|found| found.first().map(|row| rows::count(row, 0))).unwrap_or(0);
    }
    if moved > 0 {
        tracing::warn!(target: "redrive::store", moved, "the database's clock was set back: work that was written later than now waits from now on");
        shared.note_due_now();
        shared.notify_requested.notify_one();
    }
    Ok(())
}
