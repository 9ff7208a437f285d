//! `POST /v1/dlq/{id}/retry` and `POST /v1/dlq/retry`: the way back.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::{DlqCursor, DlqFilter, DlqPage, EventId, StoreError, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::filter::{Filter, cursor};
use crate::api::auth::MayAdmin;
use crate::api::body::{Json, MaybeJson, Named};
use crate::api::problem::Problem;
use crate::api::{Api, reply};

/// How many go back with one request: by default, and at most.
const USUAL: u32 = 1000;
const MOST: u32 = 10_000;

/// How many are sent back at the same time.
const AT_ONCE: usize = 32;

/// How many are looked at in one read.
const PAGE: u32 = 200;

/// A payload and what stands around it.
const LARGEST: usize = (1 << 20) + 1024;

/// How one event goes back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryOne {
    /// Another payload; the original is kept in the history.
    #[schema(value_type = Value, required = false)]
    #[serde(default, deserialize_with = "given")]
    payload: Option<Box<RawValue>>,
}

/// `null` is a payload like any other.
fn given<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(d).map(Some)
}

/// An event that is on its way again.
#[derive(Debug, Serialize, ToSchema)]
struct Retried {
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
}

/// Which events go back, and how.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryMany {
    /// Which; `{}` means all.
    filter: Filter,
    /// Only count.
    #[serde(default)]
    dry_run: bool,
    /// So many in a second. They are given their times now, so the rate holds whatever becomes of this server.
    #[schema(minimum = 1, maximum = 1000)]
    rate: Option<u32>,
    /// At most so many with this request.
    #[schema(minimum = 1, maximum = 10_000, default = 1000)]
    limit: Option<u32>,
    /// Continue where a request before this one ended.
    #[schema(max_length = 64)]
    after: Option<String>,
}

/// What has become of them.
#[derive(Debug, Default, Serialize, ToSchema)]
struct RetriedMany {
    /// Events that the filter matched.
    matched: u64,
    /// Events that are on their way again; 0 if they were only counted.
    retried: u64,
    /// Pass it as `after` to go on; `null` if that was all.
    next: Option<String>,
}

/// Send one event back to be handled again
#[utoipa::path(post, path = "/v1/dlq/{id}/retry", tag = "dlq", security(("token" = ["admin"])),
    params(("id" = uuid::Uuid, Path, description = "The event")), request_body = Option<RetryOne>,
    responses((status = 202, body = Retried)))]
pub(crate) async fn retry_one(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<RetryOne, LARGEST>,
) -> Result<Response, Problem> {
    match how.and_then(|how| how.payload) {
        Some(payload) => api.bus.dlq().retry_edited(id, &payload).await?,
        None => api.bus.dlq().retry(id).await?,
    }
    Ok(reply::json(StatusCode::ACCEPTED, &Retried { id }))
}

/// Send many events back, at most so many with one request
///
/// Of an event that several receivers have given up, only those get it again whose entries the filter matches.
#[utoipa::path(post, path = "/v1/dlq/retry", tag = "dlq", security(("token" = ["admin"])), request_body = RetryMany,
    responses((status = 200, body = RetriedMany)))]
pub(crate) async fn retry_many(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Json(how): Json<RetryMany>,
) -> Result<Response, Problem> {
    let limit = how.limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) || how.rate.is_some_and(|rate| !(1..=1000).contains(&rate)) {
        return Err(Problem::invalid(format!(
            "limit is from 1 to {MOST}, and rate from 1 to 1000 in a second"
        )));
    }
    let after = cursor(how.after.as_deref())?;
    let filter = how.filter.try_into()?;
    Ok(reply::ok(&send_back(&api, filter, after, limit, how.rate, how.dry_run).await?))
}

async fn send_back(
    api: &Api,
    filter: DlqFilter,
    mut after: Option<DlqCursor>,
    limit: u32,
    rate: Option<u32>,
    dry_run: bool,
) -> Result<RetriedMany, Problem> {
    let (clock, mut report) = (api.store.clock(), RetriedMany::default());
    let began = clock.now();
    loop {
        let page = DlqPage { offset: 0, limit: PAGE, after };
        let found = api.store.dead_letters_in_short(filter.clone(), page).await?;
        let (mut meant, is_last) = (Vec::new(), found.is_empty());
        for dead in found {
            // Several receivers of one event may have given up; the event goes back once, and once only: what goes back and
            // dies again at once comes before the cursor.
            if after.is_some_and(|after| after == dead.cursor.behind_event()) {
                continue;
            }
            if report.matched == u64::from(limit) {
                report.next = after.map(|after| after.to_string());
                break;
            }
            after = Some(dead.cursor.behind_event());
            // Spread on disk, by their due times.
            let wait = rate.map_or(0, |rate| report.matched * 1000 / u64::from(rate));
            meant.push((dead.id, clock.now().max(began + Duration::from_millis(wait))));
            report.matched += 1;
        }
        if !dry_run {
            for part in meant.chunks(AT_ONCE) {
                report.retried += together(api, &filter, part).await?;
            }
        }
        if is_last || report.next.is_some() {
            return Ok(report);
        }
    }
}

/// Sends some back at the same time, so that they share a sync, and says how many that were.
async fn together(api: &Api, filter: &DlqFilter, part: &[(EventId, Timestamp)]) -> Result<u64, Problem> {
    let redrive = |(id, at): &(EventId, Timestamp)| api.store.redrive_matching(*id, filter.clone(), *at);
    let mut retried = 0;
    for sent in futures_util::future::join_all(part.iter().map(redrive)).await {
        match sent {
            Ok(()) => retried += 1,
            // Somebody else was faster.
            Err(StoreError::NotDead { .. } | StoreError::NoSuchEvent { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(retried)
}
