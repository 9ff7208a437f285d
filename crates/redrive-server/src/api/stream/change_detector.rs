//! Finds the changes since the last poll.
//!
//! Every poll reads the newest events again: several processes may store at the same time, and an event that is stored later may become
//! visible earlier. Events in flight are looked up one by one, a few with every poll.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use redrive::EventId;
use redrive::events::{EventDetail, EventFilter, EventPage, EventStatus, PayloadOmitted};
use redrive::store::{Store, StoreError};
use redrive_api::stream::EventNotice;

use super::update::StreamUpdate;
use crate::api::reply;

/// Events read per query.
const PAGE_SIZE: u32 = 100;

/// Pages of one poll. Events behind them are not reported.
const MAX_PAGES: usize = 10;

/// Events in flight that one poll looks up.
const MAX_LOOKUPS: usize = 50;

/// Events whose status is remembered.
const MAX_REMEMBERED: usize = 20_000;

/// The events of earlier polls with their status.
#[derive(Debug)]
pub(super) struct ChangeDetector {
    store: Arc<dyn Store>,
    seen: HashMap<EventId, EventStatus>,
    /// Order of discovery, to forget the oldest.
    order: VecDeque<EventId>,
    /// Events in flight, each once.
    open: VecDeque<EventId>,
    is_first: bool,
}

impl ChangeDetector {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        ChangeDetector {
            store,
            seen: HashMap::new(),
            order: VecDeque::new(),
            open: VecDeque::new(),
            is_first: true,
        }
    }

    /// Returns the changes. The first poll returns none.
    pub(super) async fn poll(&mut self) -> Result<Vec<StreamUpdate>, StoreError> {
        let (mut found, is_all) = self.newest().await?;
        let mut updates = Vec::new();
        if !is_all && !self.is_first {
            updates.push(StreamUpdate::Skipped);
        }
        found.reverse();
        for event in &found {
            self.note(event, &mut updates);
        }
        if self.is_first {
            updates.clear();
        } else {
            self.look_up(&mut updates).await?;
        }
        self.is_first = false;
        self.forget();
        Ok(updates)
    }

    /// Reads the newest events, newest first, back to the first page with an event of an earlier poll. The flag is `false` if
    /// `MAX_PAGES` ended the search.
    async fn newest(&self) -> Result<(Vec<EventDetail<PayloadOmitted>>, bool), StoreError> {
        let (mut found, mut after) = (Vec::new(), None);
        for _ in 0..if self.is_first { 1 } else { MAX_PAGES } {
            let page = EventPage { limit: PAGE_SIZE, after };
            let page = self.store.event_summaries(EventFilter::default(), page).await?;
            after = page.last().map(|event| event.cursor);
            let is_last = page.len() < PAGE_SIZE as usize;
            let reaches_known = page.iter().any(|event| self.seen.contains_key(&event.id));
            found.extend(page);
            if is_last || reaches_known {
                return Ok((found, true));
            }
        }
        Ok((found, false))
    }

    /// Looks up events in flight that are not among the newest any more.
    async fn look_up(&mut self, updates: &mut Vec<StreamUpdate>) -> Result<(), StoreError> {
        for _ in 0..MAX_LOOKUPS.min(self.open.len()) {
            let Some(id) = self.open.pop_front() else { break };
            if self.seen.get(&id).is_none_or(|status| is_over(*status)) {
                continue;
            }
            match self.store.event(id).await {
                Ok(event) => {
                    // Queued again before it is noted, which removes nothing.
                    self.open.push_back(id);
                    self.note(&event, updates);
                }
                Err(StoreError::NoSuchEvent { .. }) => {}
                Err(error) => {
                    self.open.push_front(id);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn note<P>(&mut self, event: &EventDetail<P>, updates: &mut Vec<StreamUpdate>) {
        let before = self.seen.insert(event.id, event.status);
        if before.is_none() {
            self.order.push_back(event.id);
            updates.push(update("published", event));
        }
        let was_over = before.is_some_and(is_over);
        if is_over(event.status) && before != Some(event.status) {
            updates.push(update(if event.status == EventStatus::Done { "done" } else { "dead" }, event));
        }
        if !is_over(event.status) && (before.is_none() || was_over) {
            self.open.push_back(event.id);
        }
    }

    fn forget(&mut self) {
        while self.order.len() > MAX_REMEMBERED {
            if let Some(id) = self.order.pop_front() {
                self.seen.remove(&id);
            }
        }
        self.open.retain(|id| self.seen.contains_key(id));
    }
}

fn is_over(status: EventStatus) -> bool {
    matches!(status, EventStatus::Done | EventStatus::Dlq)
}

fn update<P>(what: &'static str, event: &EventDetail<P>) -> StreamUpdate {
    let id = event.id.to_string();
    let notice = EventNotice {
        id: *event.id.as_uuid(),
        event_type: event.event_type.to_string(),
        status: event.status.to_string().into(),
        retry_count: event.retry_count,
        created_at: event.created_at.into(),
        updated_at: event.updated_at.into(),
    };
    let data = reply::to_json(&notice);
    StreamUpdate::Event { what, event_type: event.event_type.clone(), id, data }
}
