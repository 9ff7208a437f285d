//! The codes in the column `status` of events and deliveries.
//!
//! Codes below 3 are work to claim or in flight; on SQLite the partial indexes of the claims cover only these rows. Every database
//! stores the codes, so their meaning never changes.

use crate::event::EventStatus;
use crate::query::Stats;
use crate::work::{Claimed, Settlement, Verdict};

/// Only of deliveries: leased by a pull consumer until its due time. The column `lease` identifies the lease.
pub(crate) const LEASED: i16 = -2;
/// Crash suspect, not claimed: it was running at two or more crashes, and is claimed only to run in isolation.
pub(crate) const SUSPECT: i16 = -1;
/// Not claimed: new, deferred before any failed attempt, recovered after its first crash, or redriven.
pub(crate) const PENDING: i16 = 0;
/// Claimed by a dispatcher and not settled: its handlers run.
pub(crate) const RUNNING: i16 = 1;
/// Not claimed, and at least one attempt was charged: waits for a due time or in the backlog.
pub(crate) const WAITING: i16 = 2;
/// Ended: every matching subscription has handled it, or none matches.
pub(crate) const DONE: i16 = 3;
/// Ended as a dead letter, until a redrive opens it again. An event with deliveries is dead if one of them is.
pub(crate) const DEAD: i16 = 4;
/// Only of events: the event has open deliveries to single subscriptions and ends with the last of them.
pub(crate) const DELIVERING: i16 = 5;
/// Only of events: dead deliveries of the event were redriven. The claim of the first one makes the event [`DELIVERING`].
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
        Verdict::Lease { .. } => LEASED,
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
