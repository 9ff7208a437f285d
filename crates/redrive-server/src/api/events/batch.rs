//! `POST /v1/events/batch`: publishes all events of a batch or none.

use std::fmt;

use axum::extract::{Request, State};
use redrive::store::NewEvent;
use redrive_api::events::{PublishEvent, PublishedEvent};
use redrive_api::page::List;
use redrive_api::problem::ItemError;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::publish::{prepare, store, trace_of};
use crate::api::auth::MayPublish;
use crate::api::problem::{Code, Problem};
use crate::api::{ApiState, Reply, body, idempotency, reply};

/// Largest batch.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// Number of invalid items that a problem lists.
const MAX_ITEM_ERRORS: usize = 100;

/// Publish many events, all or none
///
/// A JSON array of at most 10 000 events and 16 MiB. The body may also be one event a line with `content-type: application/x-ndjson`, which
/// generated clients do not offer.
#[utoipa::path(post, path = "/v1/events/batch", tag = "events", security(("token" = ["publish"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated request with this key gets the first answer, for a day", min_length = 1, max_length = 200, pattern = "^[!-~]([ -~]*[!-~])?$"),
        ("traceparent" = Option<String>, Header, description = "The trace context of the events (W3C)")),
    request_body = Vec<PublishEvent>,
    responses((status = 202, body = List<PublishedEvent>)))]
pub(crate) async fn publish_batch(
    State(api): ApiState,
    MayPublish(caller): MayPublish,
    request: Request,
) -> Reply {
    let headers = request.headers().clone();
    let split = match body::media_type(&headers).as_str() {
        "application/json" => items_of_array,
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" => items_of_lines,
        _ => return Err(body::wrong_type("content-type: application/json` or `application/x-ndjson")),
    };
    let (_reservation, bytes) = body::read(request, &api.http, MAX_BATCH_BYTES).await?;
    let events = parse(split(&bytes)?)?;
    let trace = trace_of(&headers);
    let ticket = match idempotency::begin(&api, &caller, "/v1/events/batch", &headers, &bytes).await? {
        idempotency::Request::New(ticket) => ticket,
        idempotency::Request::Answered(response) => return Ok(response),
    };
    let has_own_id = events.iter().any(|event| event.id.is_some());
    let prepared = events
        .into_iter()
        .enumerate()
        .map(|(index, event)| prepare(event, &api.bus, ticket.id(index), trace));
    let prepared: Result<Vec<NewEvent>, Problem> =
        all(prepared.map(|event| event.map_err(|problem| problem.detail().to_owned())));
    store(&api, ticket, prepared, has_own_id, |data| reply::to_json(&List { data })).await
}

/// Items of a batch. Items beyond the limit are counted and not kept: a few bytes of a body would become a hundred times as many in
/// memory.
#[derive(Default)]
struct Items {
    kept: Vec<Result<Box<RawValue>, String>>,
    count: usize,
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(array: D) -> Result<Self, D::Error> {
        array.deserialize_seq(Items::default())
    }
}

impl<'de> Visitor<'de> for Items {
    type Value = Items;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<Items, A::Error> {
        while self.kept.len() < NewEvent::MAX_BATCH_EVENTS {
            match array.next_element()? {
                Some(item) => self.kept.push(Ok(item)),
                None => break,
            }
        }
        self.count = self.kept.len();
        while array.next_element::<IgnoredAny>()?.is_some() {
            self.count += 1;
        }
        Ok(self)
    }
}

fn items_of_array(bytes: &[u8]) -> Result<Items, Problem> {
    body::parse(bytes)
}

fn items_of_lines(bytes: &[u8]) -> Result<Items, Problem> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Problem::invalid(format!("the body is not UTF-8: {error}")))?;
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let read = |line| serde_json::from_str(line).map_err(|error| body::unreadable(&error));
    let kept: Vec<_> = lines.by_ref().take(NewEvent::MAX_BATCH_EVENTS).map(read).collect();
    let count = kept.len() + lines.count();
    Ok(Items { kept, count })
}

fn parse(Items { kept, count }: Items) -> Result<Vec<PublishEvent>, Problem> {
    let limit = NewEvent::MAX_BATCH_EVENTS;
    if count == 0 {
        return Err(Problem::invalid("the batch is empty: send at least one event"));
    }
    if count > limit {
        return Err(Problem::new(
            Code::TooLarge,
            format!("a batch of {count} events is larger than the limit of {limit}: send it in parts"),
        ));
    }
    all(kept
        .into_iter()
        .map(|item| body::from_json(item?.get().as_bytes()).map_err(|error| body::unreadable(&error))))
}

/// Returns all items, or the errors of the invalid ones.
fn all<T>(items: impl Iterator<Item = Result<T, String>>) -> Result<Vec<T>, Problem> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (index, item) in items.enumerate() {
        match item {
            Ok(item) => good.push(item),
            Err(detail) if bad.len() < MAX_ITEM_ERRORS => bad.push(ItemError { index, detail }),
            Err(_) => {}
        }
    }
    if bad.is_empty() { Ok(good) } else { Err(Problem::of_items(bad)) }
}
