//! The numbers in the column `status`.

use crate::event::EventStatus;

pub(super) const SUSPECT: i16 = -1;
pub(super) const PENDING: i16 = 0;
pub(super) const RUNNING: i16 = 1;
pub(super) const WAITING: i16 = 2;
pub(super) const DONE: i16 = 3;
pub(super) const DEAD: i16 = 4;
pub(super) const DELIVERING: i16 = 5;

/// As the specification names it.
pub(super) fn name(status: i16) -> EventStatus {
    match status {
        SUSPECT | PENDING => EventStatus::Pending,
        DONE => EventStatus::Done,
        DEAD => EventStatus::Dlq,
        _ => EventStatus::Processing,
    }
}
