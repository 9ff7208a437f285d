//! Counts the outcomes of all acknowledged events by reading the database.

use std::collections::HashSet;

use redrive::EventId;
use redrive::events::{EventFilter, EventPage, EventStatus};
use redrive::store::Store;
use serde::Serialize;

use crate::failure::Failure;

const PAGE_EVENTS: u32 = 10_000;

/// Outcomes of the acknowledged events.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Census {
    pub(super) done: u64,
    pub(super) dead: u64,
    /// Not handled yet.
    pub(super) pending: u64,
    /// Missing in the file; must be 0.
    pub(super) lost: u64,
    /// Stored, but the publisher was killed before the acknowledgement.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) unconfirmed: u64,
    /// Attempts after the first, over all events.
    pub(super) retries: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Census {
    pub(super) async fn take(store: &dyn Store, acknowledged: &HashSet<EventId>) -> Result<Self, Failure> {
        let mut census = Census::default();
        let (mut found, mut after) = (0, None);
        loop {
            let events = store
                .event_summaries(EventFilter::default(), EventPage { limit: PAGE_EVENTS, after })
                .await?;
            let Some(last) = events.last() else { break };
            after = Some(last.cursor);
            for event in &events {
                // No retry follows the last failure of a dead event.
                let failures = u64::from(event.retry_count);
                census.retries += match event.status {
                    EventStatus::Dlq => failures.saturating_sub(1),
                    _ => failures,
                };
                if !acknowledged.contains(&event.id) {
                    census.unconfirmed += 1;
                    continue;
                }
                found += 1;
                match event.status {
                    EventStatus::Done => census.done += 1,
                    EventStatus::Dlq => census.dead += 1,
                    EventStatus::Pending | EventStatus::Processing => census.pending += 1,
                }
            }
        }
        census.lost = acknowledged.len() as u64 - found;
        Ok(census)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_event_counts_as_lost_and_a_waiting_one_as_pending() {
        let folder = tempfile::tempdir().unwrap();
        let bus = redrive::EventBus::open(folder.path().join("a.db")).await.unwrap();
        let kept = bus.publish("a", &1).enqueue().await.unwrap();
        bus.publish("a", &2).enqueue().await.unwrap(); // not acknowledged
        let acknowledged = HashSet::from([kept, EventId::new()]);
        let census = Census::take(bus.store().as_ref(), &acknowledged).await.unwrap();
        assert_eq!(census, Census { pending: 1, lost: 1, unconfirmed: 1, ..Census::default() });
    }
}
