//! Decides which rows a redrive changes, for both stores.

use crate::error::StoreError;
use crate::event::{EventId, SubscriptionName};
use crate::sql::status;

/// The rows that a redrive of one dead event changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedrivePlan {
    /// The new status code of the event.
    pub(crate) status: i16,
    /// When the event is due; `None` if only deliveries to single subscriptions are redriven.
    pub(crate) due_at: Option<i64>,
}

impl RedrivePlan {
    /// Checks that an event in this status has dead letters, and decides between the whole event and single deliveries.
    ///
    /// A dead letter for the whole event redrives the whole event; open deliveries stay with their subscriptions, which may
    /// not be registered. Otherwise only the dead deliveries are redriven, even while other deliveries of the event are open.
    pub(crate) fn new(
        id: EventId,
        status: i16,
        is_whole: bool,
        dead_deliveries: i64,
        open_deliveries: i64,
        at: i64,
    ) -> Result<Self, StoreError> {
        let is_partly_dead = status >= status::DELIVERING && dead_deliveries > 0;
        if status != status::DEAD && !is_partly_dead {
            return Err(StoreError::NotDead { id, status: status::name(status) });
        }
        Ok(if is_whole || dead_deliveries == 0 {
            RedrivePlan { status: status::PENDING, due_at: Some(at) }
        } else {
            let is_open = open_deliveries > 0 && status == status::DELIVERING;
            RedrivePlan { status: if is_open { status::DELIVERING } else { status::REDRIVEN }, due_at: None }
        })
    }
}

/// The part of a dead event that a filter redrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RedriveScope {
    /// The whole event, as by its id.
    All,
    /// The dead letters of these subscriptions; those of other subscriptions stay dead.
    Only(Vec<SubscriptionName>),
}

impl RedriveScope {
    /// Takes the dead letters of one event: the subscription, or `None` for the whole event, and whether the filter matches.
    pub(crate) fn of(letters: Vec<(Option<SubscriptionName>, bool)>) -> Self {
        let is_whole = letters.iter().any(|(by, matches)| *matches && by.is_none());
        if is_whole || letters.iter().all(|(_, matches)| *matches) {
            return RedriveScope::All;
        }
        RedriveScope::Only(
            letters.into_iter().filter(|(_, matches)| *matches).filter_map(|(by, _)| by).collect(),
        )
    }
}
