//! When a deferred delivery or a retry is due: at an instant, or whenever its subscription's backlog is claimed.

use redrive_retry::Timestamp;

/// The number that stands for [`Due::Backlog`] in the `due_at` column of both stores. The statements and the partial indexes of the
/// schemas contain it. It lies in the year 287,168, so ordinary claims never reach it.
const BACKLOG_MILLIS: i64 = 9_000_000_000_000_000;

/// The time at which a delivery may be claimed again. An instant sorts before the backlog.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// At this instant.
    At(Timestamp),
    /// When a limit frees: [`WorkQueue::claim_backlog`](crate::WorkQueue::claim_backlog) takes it, [`WorkQueue::claim`](crate::WorkQueue::claim) does not.
    Backlog,
}

impl Due {
    /// The instant; `None` for the backlog.
    pub fn at(self) -> Option<Timestamp> {
        match self {
            Due::At(at) => Some(at),
            Due::Backlog => None,
        }
    }

    /// The value of a `due_at` column.
    pub(crate) fn to_sql_millis(self) -> i64 {
        self.at().map_or(BACKLOG_MILLIS, Timestamp::as_millis)
    }

    /// Reads the value of a `due_at` column.
    pub(crate) fn from_sql_millis(millis: i64) -> Self {
        if millis == BACKLOG_MILLIS { Due::Backlog } else { Due::At(Timestamp::from_millis(millis)) }
    }
}

impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Self {
        Due::At(at)
    }
}
