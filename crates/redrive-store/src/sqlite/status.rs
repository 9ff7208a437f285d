//! The numbers in the column `status`.

use crate::event::EventStatus;

pub(super) const SUSPECT: i64 = -1;
pub(super) const PENDING: i64 = 0;
pub(super) const RUNNING: i64 = 1;
pub(super) const WAITING: i64 = 2;
pub(super) const DONE: i64 = 3;
pub(super) const DEAD: i64 = 4;
pub(super) const DELIVERING: i64 = 5;

/// As the specification names it.
pub(super) fn name(status: i64) -> EventStatus {
    match status {
        SUSPECT | PENDING => EventStatus::Pending,
        DONE => EventStatus::Done,
        DEAD => EventStatus::Dlq,
        _ => EventStatus::Processing,
    }
}
