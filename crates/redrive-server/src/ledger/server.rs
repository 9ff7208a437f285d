//! The events of a running server, by its HTTP API.

use std::time::Duration;

use redrive::{
    DeadLetter, DlqCursor, DlqFilter, DlqGroup, EventDetail, EventFilter, EventId, RetryReport, Unread,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::Part;
use super::wire::{Dead, DeadEntries, Event, Groups, Page};
use crate::failure::Failure;
use crate::place::{Place, encoded};

/// The longest page of the API.
const PAGE: u32 = 200;

/// So many go back with one request.
const AT_ONCE: u32 = 1000;

/// So many are asked for at the same time.
const TOGETHER: usize = 16;

pub(crate) struct Server {
    place: Place,
}

#[derive(Debug, Deserialize)]
struct Retried {
    matched: u64,
    retried: u64,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Purged {
    purged: u64,
}

impl Server {
    pub(super) fn new(place: Place) -> Self {
        Server { place }
    }

    pub(super) fn flag(&self) -> String {
        self.place.flag()
    }

    pub(super) async fn events(
        &self,
        filter: &EventFilter,
        limit: u32,
        after: Option<i64>,
    ) -> Result<Part<EventDetail, i64>, Failure> {
        let Part { items: listed, next } = self.events_in_short(filter, limit, after).await?;
        // What is not kept any more is left out.
        let whole = self.all(listed.iter().map(|event| format!("/v1/events/{}", event.id))).await?;
        Ok(Part { items: whole.into_iter().flatten().map(|event: Event| event.into()).collect(), next })
    }

    pub(super) async fn events_in_short(
        &self,
        filter: &EventFilter,
        limit: u32,
        after: Option<i64>,
    ) -> Result<Part<EventDetail<Unread>, i64>, Failure> {
        let mut query = Vec::new();
        query.extend(filter.status.map(|status| ("status", status.to_string())));
        query.extend(filter.event_type.as_ref().map(|name| ("type", name.to_string())));
        let (found, next) =
            self.list::<Event>("/v1/events", &query, limit, after.map(|after| after.to_string())).await?;
        let next = next.map(|next| next.parse().map_err(|_| unreadable("a cursor"))).transpose()?;
        Ok(Part { items: found.into_iter().map(EventDetail::from).collect(), next })
    }

    pub(super) async fn event(&self, id: EventId) -> Result<EventDetail, Failure> {
        Ok(self.place.get::<Event>(&format!("/v1/events/{id}")).await?.into())
    }

    pub(super) async fn dead_letters(
        &self,
        filter: &DlqFilter,
        limit: u32,
        after: Option<DlqCursor>,
    ) -> Result<Part<DeadLetter, DlqCursor>, Failure> {
        let Part { items: listed, next } = self.dead_letters_in_short(filter, limit, after).await?;
        let whole = self.all(listed.iter().map(|one| format!("/v1/dlq/{}", one.id))).await?;
        let mut items = Vec::with_capacity(listed.len());
        for (listed, whole) in listed.into_iter().zip(whole) {
            // What was sent back meanwhile is left out: it is not dead any more.
            let whole = dead(whole.map_or_else(Vec::new, |entries: DeadEntries| entries.data), Dead::letter)?;
            items.extend(whole.into_iter().find(|one| one.subscription == listed.subscription));
        }
        Ok(Part { items, next })
    }

    pub(super) async fn dead_letters_in_short(
        &self,
        filter: &DlqFilter,
        limit: u32,
        after: Option<DlqCursor>,
    ) -> Result<Part<DeadLetter<Unread>, DlqCursor>, Failure> {
        let after = after.map(|after| after.to_string());
        let (found, next) = self.list("/v1/dlq", &query_of(filter), limit, after).await?;
        let next = next.map(|next| next.parse().map_err(|_| unreadable("a cursor"))).transpose()?;
        Ok(Part { items: dead(found, Dead::in_short)?, next })
    }

    pub(super) async fn dead_letter(&self, id: EventId) -> Result<Vec<DeadLetter>, Failure> {
        dead(self.place.get::<DeadEntries>(&format!("/v1/dlq/{id}")).await?.data, Dead::letter)
    }

    pub(super) async fn groups(&self, filter: &DlqFilter) -> Result<Vec<DlqGroup>, Failure> {
        let path = format!("/v1/dlq/groups?{}", text_of(&query_of(filter)));
        Ok(self.place.get::<Groups>(&path).await?.data.into_iter().map(DlqGroup::from).collect())
    }

    pub(super) async fn retry(&self, id: EventId, payload: Option<&RawValue>) -> Result<(), Failure> {
        // As it was written: no number in it may change on its way.
        let body =
            payload.map_or_else(|| "{}".to_owned(), |payload| format!("{{\"payload\":{}}}", payload.get()));
        self.place.post_text::<Value>(&format!("/v1/dlq/{id}/retry"), body).await.map(drop)
    }

    pub(super) async fn retry_all(
        &self,
        filter: &DlqFilter,
        per_second: Option<u32>,
        dry_run: bool,
    ) -> Result<RetryReport, Failure> {
        let filter: Map<String, Value> =
            query_of(filter).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let (mut report, mut after) = (RetryReport::default(), None::<String>);
        loop {
            let how = json!({"filter": filter, "dry_run": dry_run, "rate": per_second, "limit": AT_ONCE, "after": after});
            let done: Retried = self.place.post("/v1/dlq/retry", &how).await?;
            report.matched += done.matched;
            report.retried += done.retried;
            after = done.next;
            if after.is_none() {
                return Ok(report);
            }
            // Those of one request are spread by the server; the next ones come when they have gone.
            if let Some(rate) = per_second.filter(|_| !dry_run) {
                tokio::time::sleep(Duration::from_secs(done.matched) / rate).await;
            }
        }
    }

    pub(super) async fn purge(&self, age: Duration) -> Result<u64, Failure> {
        let path = format!("/v1/dlq?older_than={}", age_text(age)?);
        Ok(self.place.delete_and_read::<Purged>(&path).await?.purged)
    }

    /// What is at each of these paths, if it is still there; a few are asked for at the same time.
    async fn all<T: DeserializeOwned>(
        &self,
        paths: impl Iterator<Item = String>,
    ) -> Result<Vec<Option<T>>, Failure> {
        let paths: Vec<String> = paths.collect();
        let mut all = Vec::with_capacity(paths.len());
        for part in paths.chunks(TOGETHER) {
            let asked = part.iter().map(|path| self.place.find(path));
            all.extend(futures_util::future::try_join_all(asked).await?);
        }
        Ok(all)
    }

    /// As many as are asked for, however short the pages of the API are.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&'static str, String)],
        limit: u32,
        mut after: Option<String>,
    ) -> Result<(Vec<T>, Option<String>), Failure> {
        let mut items = Vec::new();
        loop {
            let left = limit.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
            let mut query = query.to_vec();
            query.push(("limit", left.clamp(1, PAGE).to_string()));
            query.extend(after.take().map(|after| ("after", after)));
            let page: Page<T> = self.place.get(&format!("{path}?{}", text_of(&query))).await?;
            items.extend(page.data);
            if page.next.is_none() || items.len() >= limit as usize {
                return Ok((items, page.next));
            }
            after = page.next;
        }
    }
}

fn dead<P>(
    wire: Vec<Dead>,
    read: impl Fn(Dead) -> Option<DeadLetter<P>>,
) -> Result<Vec<DeadLetter<P>>, Failure> {
    wire.into_iter().map(|dead| read(dead).ok_or_else(|| unreadable("a dead event"))).collect()
}

fn query_of(filter: &DlqFilter) -> Vec<(&'static str, String)> {
    let DlqFilter { event_type, since, until, reason, text, fingerprint, subscription } = filter.clone();
    let all = [
        ("type", event_type.map(|name| name.to_string())),
        ("since", since.map(|at| at.to_string())),
        ("until", until.map(|at| at.to_string())),
        ("reason", reason),
        ("text", text),
        ("fingerprint", fingerprint),
        ("subscription", subscription.map(|name| name.to_string())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn text_of(query: &[(&'static str, String)]) -> String {
    let pairs: Vec<_> = query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    pairs.join("&")
}

/// As the API wants it: a number of up to five digits, and its unit.
fn age_text(age: Duration) -> Result<String, Failure> {
    let fits = |(seconds, _): &(u64, &str)| {
        age.subsec_nanos() == 0 && age.as_secs().is_multiple_of(*seconds) && age.as_secs() / seconds < 100_000
    };
    let unit = [(1, "s"), (60, "m"), (3600, "h"), (86_400, "d")].into_iter().find(fits);
    unit.map(|(seconds, unit)| format!("{}{unit}", age.as_secs() / seconds)).ok_or_else(|| {
        Failure::Usage("a server wants an age of whole seconds, such as 90s, 12h or 7d".to_owned())
    })
}

fn unreadable(what: &str) -> Failure {
    Failure::Failed(format!(
        "the server has answered with {what} that cannot be read: is it of this release?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_written_as_the_api_wants_it() {
        for (seconds, text) in [(0, "0s"), (90, "90s"), (7 * 86_400, "10080m"), (400 * 86_400, "9600h")] {
            assert_eq!(age_text(Duration::from_secs(seconds)).unwrap(), text);
        }
        assert!(age_text(Duration::from_millis(1500)).is_err());
        assert!(age_text(Duration::from_secs(100_001)).is_err());
    }
}
