//! Counts what became of every acknowledged event, in the file itself.

use std::collections::HashSet;

use redrive::{EventFilter, EventId, EventPage, EventStatus, Store};

use crate::failure::Failure;

const PAGE: u32 = 10_000;

/// What became of the acknowledged events.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    pub(super) done: u64,
    pub(super) dead: u64,
    /// Neither: still to be handled.
    pub(super) pending: u64,
    /// Not in the file. The promise is that this is 0.
    pub(super) lost: u64,
    /// Stored, but the publisher was killed before it could say so.
    pub(super) unconfirmed: u64,
    /// Attempts after the first, of all events.
    pub(super) retries: u64,
}

impl Census {
    pub(super) async fn take(store: &dyn Store, acknowledged: &HashSet<EventId>) -> Result<Self, Failure> {
        let mut census = Census::default();
        let (mut found, mut after) = (0, None);
        loop {
            let events =
                store.events_in_short(EventFilter::default(), EventPage { limit: PAGE, after }).await?;
            let Some(last) = events.last() else { break };
            after = Some(last.cursor);
            for event in &events {
                // Of a dead event the last failure was followed by no retry.
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

    /// The proof is worth something only if it can fail.
    #[tokio::test]
    async fn an_event_that_is_not_in_the_file_is_lost_and_one_that_waits_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let bus = redrive::EventBus::open(folder.path().join("a.db")).await.unwrap();
        let kept = bus.publish("a", &1).enqueue().await.unwrap();
        bus.publish("a", &2).enqueue().await.unwrap(); // and its publisher never heard of it
        let acknowledged = HashSet::from([kept, EventId::new()]);
        let census = Census::take(bus.store().as_ref(), &acknowledged).await.unwrap();
        assert_eq!(census, Census { pending: 1, lost: 1, unconfirmed: 1, ..Census::default() });
    }
}
