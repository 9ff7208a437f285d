//! The codes in the column `status` of events and deliveries.

use crate::event::EventStatus;
use crate::query::Stats;
use crate::work::{Claimed, Settlement, Verdict};

pub(crate) const SUSPECT: i16 = -1;
pub(crate) const PENDING: i16 = 0;
pub(crate) const RUNNING: i16 = 1;
pub(crate) const WAITING: i16 = 2;
pub(crate) const DONE: i16 = 3;
pub(crate) const DEAD: i16 = 4;
pub(crate) const DELIVERING: i16 = 5;
/// As [`DELIVERING`], until the first of the redriven deliveries is claimed.
pub(crate) const REDRIVEN: i16 = 6;

/// Returns the specified name of a code.
pub(crate) fn name(status: i16) -> EventStatus {
    match status {
        SUSPECT | PENDING | REDRIVEN => EventStatus::Pending,
        DONE => EventStatus::Done,
        DEAD => EventStatus::Dlq,
        _ => EventStatus::Processing,
    }
}

/// Returns the code that a settlement leaves in the row of its claim.
pub(crate) fn after(claimed: &Claimed, settlement: &Settlement) -> i16 {
    match settlement.verdict {
        Verdict::Done if settlement.split_off.is_empty() && !claimed.has_open_deliveries => DONE,
        Verdict::Done => DELIVERING,
        Verdict::Retry(_) | Verdict::ReleaseSuspect(_) => WAITING,
        Verdict::Defer(_) if claimed.attempt > 1 => WAITING,
        Verdict::Defer(_) => PENDING,
        Verdict::Dead(_) => DEAD,
    }
}

/// Adds the number of events with one code to the counts.
pub(crate) fn count(stats: &mut Stats, status: i16, events: u64) {
    *match name(status) {
        EventStatus::Pending => &mut stats.pending,
        EventStatus::Processing => &mut stats.processing,
        EventStatus::Done => &mut stats.done,
        EventStatus::Dlq => &mut stats.dlq,
    } += events;
}
