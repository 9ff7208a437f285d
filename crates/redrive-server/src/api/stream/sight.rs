//! What has happened since the last look.
//!
//! The newest events are read again at every look: several processes may store at the same time, and what is stored last is not
//! always what becomes visible last. Events that are under way are looked up one by one, a few at every look.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use redrive::{EventDetail, EventFilter, EventId, EventPage, EventStatus, Store, StoreError, Unread};
use serde_json::json;

use super::feed::News;

/// How many of the newest are read at once.
const PAGE: u32 = 100;

/// So many pages at most in one look. What is behind them is too much to tell.
const MOST_PAGES: usize = 10;

/// So many events that are under way are looked up in one look.
const LOOKUPS: usize = 50;

/// So many events are remembered.
const REMEMBERED: usize = 20_000;

/// Which events have been seen, and how they stood.
#[derive(Debug)]
pub(super) struct Sight {
    store: Arc<dyn Store>,
    seen: HashMap<EventId, EventStatus>,
    /// In the order of seeing, to forget the oldest.
    order: VecDeque<EventId>,
    /// Those that were under way; each is here once.
    open: VecDeque<EventId>,
    is_first: bool,
}

impl Sight {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Sight { store, seen: HashMap::new(), order: VecDeque::new(), open: VecDeque::new(), is_first: true }
    }

    /// Everything new. The first look only says how things stand.
    pub(super) async fn look(&mut self) -> Result<Vec<News>, StoreError> {
        let (mut found, is_all) = self.newest().await?;
        let mut news = Vec::new();
        if !is_all && !self.is_first {
            news.push(News::Skipped);
        }
        found.reverse();
        for event in &found {
            self.note(event, &mut news);
        }
        if self.is_first {
            news.clear();
        } else {
            self.look_up(&mut news).await?;
        }
        self.is_first = false;
        self.forget();
        Ok(news)
    }

    /// The newest events, newest first, back to a page with something known; and whether that page was reached.
    async fn newest(&self) -> Result<(Vec<EventDetail<Unread>>, bool), StoreError> {
        let (mut found, mut after) = (Vec::new(), None);
        for _ in 0..if self.is_first { 1 } else { MOST_PAGES } {
            let page = EventPage { limit: PAGE, after };
            let page = self.store.events_in_short(EventFilter::default(), page).await?;
            after = page.last().map(|event| event.cursor);
            let is_last = page.len() < PAGE as usize;
            let reaches_known = page.iter().any(|event| self.seen.contains_key(&event.id));
            found.extend(page);
            if is_last || reaches_known {
                return Ok((found, true));
            }
        }
        Ok((found, false))
    }

    /// Those under way that are not among the newest any more.
    async fn look_up(&mut self, news: &mut Vec<News>) -> Result<(), StoreError> {
        for _ in 0..LOOKUPS.min(self.open.len()) {
            let Some(id) = self.open.pop_front() else { break };
            if self.seen.get(&id).is_none_or(|status| is_over(*status)) {
                continue;
            }
            match self.store.event(id).await {
                Ok(event) => {
                    // Back in line before it is noted, which takes nothing out.
                    self.open.push_back(id);
                    self.note(&event, news);
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

    fn note<P>(&mut self, event: &EventDetail<P>, news: &mut Vec<News>) {
        let before = self.seen.insert(event.id, event.status);
        if before.is_none() {
            self.order.push_back(event.id);
            news.push(told("published", event));
        }
        let was_over = before.is_some_and(is_over);
        if is_over(event.status) && before != Some(event.status) {
            news.push(told(if event.status == EventStatus::Done { "done" } else { "dead" }, event));
        }
        if !is_over(event.status) && (before.is_none() || was_over) {
            self.open.push_back(event.id);
        }
    }

    fn forget(&mut self) {
        while self.order.len() > REMEMBERED {
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

fn told<P>(what: &'static str, event: &EventDetail<P>) -> News {
    let id = event.id.to_string();
    let data = json!({
        "id": id,
        "type": event.event_type,
        "status": event.status,
        "retry_count": event.retry_count,
        "created_at": event.created_at.to_string(),
        "updated_at": event.updated_at.to_string(),
    });
    News::Event { what, event_type: event.event_type.clone(), id, data: data.to_string() }
}
