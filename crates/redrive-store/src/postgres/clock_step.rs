//! Moves work that was written in the future, because the database's clock was set back or a standby with a clock behind was promoted:
//! its wait is counted from now on. The leader does it when its leadership starts, which a step back by more than its lease causes,
//! and again at every heartbeat interval until each process must have measured the time anew.
//!
//! Events that wait for a date keep it.

use std::time::Duration;

use super::{Shared, database_time, leader, lock, rows};
use crate::error::StoreError;

/// Number of rows that one transaction moves at most. The leader's fence ends after the lease.
const PAGE_ROWS: i64 = 5000;

/// Moves waiting work that was written later than now. An event that was never dispatched and due later keeps its date.
macro_rules! rewind {
    ($table:literal, $was_dispatched:literal) => {
        concat!(
            "WITH moved AS (
               UPDATE redrive.",
            $table,
            " u SET due_at = f.now + u.due_at - u.updated_at, updated_at = f.now,
                 ready_at = CASE WHEN u.ready_at < 0 THEN u.ready_at ELSE greatest(f.now + u.due_at - u.updated_at, 0) END
               FROM (
                 SELECT w.key, t.now FROM (SELECT redrive.now_ms() AS now) t, redrive.",
            $table,
            " w
                 WHERE w.ready_at BETWEEN -1 AND 8999999999999999 AND w.updated_at BETWEEN t.now + 1000 AND 8999999999999999
                 AND (w.status IN (2, -2) OR w.due_at <= w.updated_at OR w.updated_at > ",
            $was_dispatched,
            ") LIMIT $1) f
               WHERE u.key = f.key RETURNING 1)
             SELECT count(*) FROM moved"
        )
    };
}

const REWIND: [&str; 2] = [
    rewind!("event", "w.created_at"),
    rewind!("delivery", "(SELECT e.created_at FROM redrive.event e WHERE e.key = w.event_key)"),
];

/// When the leader last moved such work: the age of its leadership.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Rewound(Option<Duration>);

impl Rewound {
    /// Whether work that was written in the future is moved now, `led_for` after the start of the leadership.
    fn is_due(self, led_for: Duration, interval: Duration) -> bool {
        match self.0 {
            Some(last) if !led_for.is_zero() && last <= led_for => {
                led_for - last >= interval && last < interval * 2
            }
            _ => true,
        }
    }
}

/// Moves such work after each start of a leadership, `led_for` ago.
pub(super) async fn rewind(shared: &Shared, led_for: Duration) -> Result<(), StoreError> {
    let rewound = lock(&shared.leader_tasks.next).rewound;
    if !rewound.is_due(led_for, shared.heartbeat_interval()) {
        return Ok(());
    }
    let session = shared.pool.get().await?;
    shared.time.set(database_time::measure(&session).await?);
    let mut moved = 0;
    for statement in REWIND {
        loop {
            let Some(found) = leader::as_leader(shared, &session, statement, &[&PAGE_ROWS]).await? else {
                return Ok(()); // the next leader does it
            };
            let page = found.first().map_or(0, |row| rows::count(row, 0));
            moved += page;
            if page < PAGE_ROWS.unsigned_abs() {
                break;
            }
        }
    }
    lock(&shared.leader_tasks.next).rewound = Rewound(Some(led_for));
    if moved > 0 {
        tracing::warn!(target: "redrive::store", moved, "the database's clock was set back: work that was written later than now waits from now on");
        shared.note_due_now();
        shared.notify_requested.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_moved_at_the_start_of_a_leadership_and_for_two_intervals() {
        let (secs, interval) = (Duration::from_secs, Duration::from_secs(10));
        let is_due = |last: Option<u64>, led_for| Rewound(last.map(secs)).is_due(secs(led_for), interval);
        assert!(is_due(None, 0) && is_due(None, 7), "never done");
        assert!(is_due(Some(0), 0) && is_due(Some(30), 2), "the leadership has started again");
        assert!(!is_due(Some(0), 9) && is_due(Some(0), 10) && is_due(Some(10), 20));
        assert!(!is_due(Some(20), 40), "every process has measured the time");
    }
}
