//! The notices that `redrive events tail` has printed, so that after a reconnect none is repeated and the missed ones are found.

use std::collections::{HashMap, VecDeque};

use redrive::retry::Timestamp;
use redrive::subscription::Pattern;
use redrive_api::events::{EventFilter, EventStatus};
use redrive_api::page::{MAX_PAGE, PageQuery};
use redrive_api::stream::EventNotice;
use uuid::Uuid;

use crate::api::Session;
use crate::failure::Failure;
use crate::time_format;

/// Number of events that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Pages that are read to find missed events, and events in flight that are looked up.
const MAX_PAGES: usize = 10;
const MAX_LOOKUPS: usize = 200;

/// The printed notices.
#[derive(Debug)]
pub(super) struct Printed {
    /// Publish time of the newest printed event, or the start.
    since: Timestamp,
    /// The last kind of notice of each event.
    kinds: HashMap<Uuid, String>,
    /// Order of printing, to forget the oldest.
    order: VecDeque<Uuid>,
}

impl Printed {
    pub(super) fn new() -> Self {
        Printed { since: time_format::now(), kinds: HashMap::new(), order: VecDeque::new() }
    }

    /// Records a notice; `false` if it was printed before.
    pub(super) fn is_new(&mut self, kind: &str, event: &EventNotice) -> bool {
        self.since = self.since.max(event.created_at.0);
        match self.kinds.get_mut(&event.id) {
            // An event that has ended was published.
            Some(before) if before == kind || kind == "published" => false,
            Some(before) => {
                kind.clone_into(before);
                true
            }
            None => {
                self.kinds.insert(event.id, kind.to_owned());
                self.order.push_back(event.id);
                if self.order.len() > MAX_REMEMBERED
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.kinds.remove(&oldest);
                }
                true
            }
        }
    }

    /// Finds the notices of the time without a connection: events published since, and the ends of events in flight.
    pub(super) async fn missed(
        &self,
        api: &Session<'_>,
        pattern: &Pattern,
    ) -> Result<Vec<(&'static str, EventNotice)>, Failure> {
        let mut missed = Vec::new();
        let in_flight = self.order.iter().rev().filter(|id| self.kinds[*id] == "published");
        for id in in_flight.take(MAX_LOOKUPS) {
            // A missing event was handled so long ago that its record was deleted.
            if let Ok(event) = api.events().get(*id).await {
                missed.extend(notices(event.into()).skip(1));
            }
        }
        let (mut published, mut after) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let query = PageQuery { limit: Some(MAX_PAGE), after };
            let page = api.events().list(&EventFilter::default(), &query).await?;
            let is_complete = page.data.iter().any(|event| event.created_at.0 < self.since);
            published.extend(
                page.data
                    .into_iter()
                    .filter(|event| event.created_at.0 >= self.since && pattern.matches(&event.event_type)),
            );
            after = page.next;
            if is_complete || after.is_none() {
                break;
            }
        }
        // Oldest first, as it happened.
        for event in published.into_iter().rev() {
            missed.extend(notices(event.into()));
        }
        Ok(missed)
    }
}

/// The notices of one event: that it was published, and how it ended.
fn notices(event: EventNotice) -> impl Iterator<Item = (&'static str, EventNotice)> {
    let end = match event.status {
        EventStatus::Done => Some("done"),
        EventStatus::Dlq => Some("dead"),
        _ => None,
    };
    ["published"].into_iter().chain(end).map(move |kind| (kind, event.clone()))
}
