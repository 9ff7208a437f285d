//! What `redrive events tail` has shown, so that after a break nothing comes twice and what was missed is found.

use std::collections::{HashMap, VecDeque};

use redrive::{EventStatus, Pattern, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::time::Instant;
use crate::failure::Failure;
use crate::moment;
use crate::place::Place;

/// So many events are remembered.
const REMEMBERED: usize = 10_000;

/// So many pages are read to find what was published meanwhile, and so many events looked up that were under way.
const MOST_PAGES: usize = 10;
const LOOKUPS: usize = 200;

/// What was shown.
#[derive(Debug)]
pub(super) struct Shown {
    /// Nothing older is missed: when the newest event was published that was shown, or the watching began.
    since: Timestamp,
    /// The last thing that was said of each.
    said: HashMap<String, String>,
    /// In the order of showing, to forget the oldest.
    order: VecDeque<String>,
}

#[derive(Debug, Deserialize)]
struct Page {
    data: Vec<Value>,
    next: Option<String>,
}

impl Shown {
    pub(super) fn new() -> Self {
        Shown { since: moment::now(), said: HashMap::new(), order: VecDeque::new() }
    }

    /// Whether this was not said of it yet.
    pub(super) fn is_new(&mut self, what: &str, data: &Value) -> bool {
        let id = data["id"].as_str().unwrap_or_default();
        if let Ok(at) = Instant::deserialize(&data["created_at"]) {
            self.since = self.since.max(at.0);
        }
        match self.said.get_mut(id) {
            // What has ended was published, whoever says so again.
            Some(before) if before == what || what == "published" => false,
            Some(before) => {
                what.clone_into(before);
                true
            }
            None => {
                self.said.insert(id.to_owned(), what.to_owned());
                self.order.push_back(id.to_owned());
                if self.order.len() > REMEMBERED
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.said.remove(&oldest);
                }
                true
            }
        }
    }

    /// What has happened since, as far back as can be seen: what was published, and how what was under way has ended.
    pub(super) async fn missed(
        &self,
        place: &Place,
        pattern: &Pattern,
    ) -> Result<Vec<(String, Value)>, Failure> {
        let mut missed = Vec::new();
        let under_way = self.order.iter().rev().filter(|id| self.said[*id] == "published");
        for id in under_way.take(LOOKUPS) {
            // One that is gone was handled so long ago that it is not kept any more.
            if let Ok(event) = place.get::<Value>(&format!("/v1/events/{id}")).await {
                missed.extend(story(&event).into_iter().skip(1));
            }
        }
        let mut published = Vec::new();
        let mut after = String::new();
        for _ in 0..MOST_PAGES {
            let page: Page = place.get(&format!("/v1/events?limit=200{after}")).await?;
            let is_new = |event: &Value| {
                let at = Instant::deserialize(&event["created_at"]);
                at.is_ok_and(|at| at.0 >= self.since)
            };
            let is_seen_back = page.data.iter().any(|event| !is_new(event));
            let wanted = |event: &&Value| pattern.matches(event["type"].as_str().unwrap_or_default());
            published.extend(page.data.iter().filter(|event| is_new(event)).filter(wanted).map(story));
            match page.next {
                Some(next) if !is_seen_back => after = format!("&after={next}"),
                _ => break,
            }
        }
        published.reverse(); // the oldest first, as it happened
        missed.extend(published.into_iter().flatten());
        Ok(missed)
    }
}

/// What would have been said of it: that it was published, and how it has ended.
fn story(event: &Value) -> Vec<(String, Value)> {
    let names = ["id", "type", "status", "retry_count", "created_at", "updated_at"];
    let data: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), event[*name].clone())).collect();
    let end = match EventStatus::deserialize(&event["status"]) {
        Ok(EventStatus::Done) => Some("done"),
        Ok(EventStatus::Dlq) => Some("dead"),
        _ => None,
    };
    let all = ["published"].into_iter().chain(end);
    all.map(|what| (what.to_owned(), json!(data))).collect()
}
