//! `POST /v1/dlq/{id}/retry` and `POST /v1/dlq/retry`: redrive dead letters.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use redrive::EventId;
use redrive::dlq::{DlqCursor, DlqFilter, DlqPage};
use redrive::retry::Timestamp;
use redrive::store::{NewEvent, StoreError};
use redrive_api::dlq::{RetriedDead, RetryDead, RetryDeadMany, RetryReport};

use super::into_filter;
use crate::api::auth::MayAdmin;
use crate::api::body::{Json, MaybeJson, Named};
use crate::api::page::dlq_cursor;
use crate::api::problem::{Code, Problem};
use crate::api::{Api, ApiState, Reply, reply};
use crate::reserved;

/// Default number of events per request.
const DEFAULT_LIMIT: u32 = 1000;

/// Maximum number of events per request.
const MAX_LIMIT: u32 = 10_000;

/// Redrives in flight at a time.
const CONCURRENCY: usize = 32;

/// Dead letters read per query.
const PAGE_SIZE: u32 = 200;

/// Largest body: a payload and its envelope.
const MAX_BODY_BYTES: usize = NewEvent::DEFAULT_MAX_PAYLOAD_BYTES + 1024;

/// Redrive one event
///
/// All dead letters of the event become due at once, with attempts anew. Another `payload` replaces that of the event; the history keeps
/// the original.
#[utoipa::path(post, path = "/v1/dlq/{id}/retry", tag = "dlq", security(("token" = ["admin"])),
    params(("id" = uuid::Uuid, Path, description = "The event")), request_body = Option<RetryDead>,
    responses((status = 202, body = RetriedDead)))]
pub(crate) async fn retry_one(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<RetryDead, MAX_BODY_BYTES>,
) -> Reply {
    match how.and_then(|how| how.payload) {
        Some(payload) => {
            reserved::check_type(api.store.event(id).await?.event_type.as_str())
                .map_err(|refusal| Problem::new(Code::ReservedType, refusal))?;
            api.bus.dlq().retry_edited(id, &payload).await?;
        }
        None => api.bus.dlq().retry(id).await?,
    }
    Ok(reply::json(StatusCode::ACCEPTED, &RetriedDead { id: *id.as_uuid() }))
}

/// Redrive many events, at most `limit` with one request
///
/// Of an event with several dead letters, only the deliveries that the filter matches are redriven.
#[utoipa::path(post, path = "/v1/dlq/retry", tag = "dlq", security(("token" = ["admin"])), request_body = RetryDeadMany,
    responses((status = 200, body = RetryReport)))]
pub(crate) async fn retry_many(State(api): ApiState, _: MayAdmin, Json(how): Json<RetryDeadMany>) -> Reply {
    let limit = how.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) || how.rate.is_some_and(|rate| !(1..=1000).contains(&rate)) {
        return Err(Problem::invalid(format!(
            "limit is from 1 to {MAX_LIMIT}, and rate from 1 to 1000 in a second"
        )));
    }
    let after = dlq_cursor(how.after.as_deref())?;
    let filter = into_filter(how.filter)?;
    Ok(reply::ok(&redrive(&api, filter, after, limit, how.rate, how.dry_run).await?))
}

async fn redrive(
    api: &Api,
    filter: DlqFilter,
    mut after: Option<DlqCursor>,
    limit: u32,
    rate: Option<u32>,
    dry_run: bool,
) -> Result<RetryReport, Problem> {
    let (clock, mut report) = (api.store.clock(), RetryReport::default());
    let began = clock.now();
    loop {
        let page = DlqPage { offset: 0, limit: PAGE_SIZE, after };
        let found = api.store.dead_letter_summaries(filter.clone(), page).await?;
        let (mut meant, is_last) = (Vec::new(), found.is_empty());
        for dead in found {
            // An event may have several dead letters and is redriven once: an event that dies again at once comes before the cursor.
            if after.is_some_and(|after| after == dead.cursor.behind_event()) {
                continue;
            }
            if report.matched == u64::from(limit) {
                report.next = after.map(|after| after.to_string());
                break;
            }
            after = Some(dead.cursor.behind_event());
            // The rate is kept on disk, as due times.
            let wait = rate.map_or(0, |rate| report.matched * 1000 / u64::from(rate));
            meant.push((dead.id, clock.now().max(began + Duration::from_millis(wait))));
            report.matched += 1;
        }
        if !dry_run {
            for part in meant.chunks(CONCURRENCY) {
                report.retried += redrive_part(api, &filter, part).await?;
            }
        }
        if is_last || report.next.is_some() {
            return Ok(report);
        }
    }
}

/// Redrives some events concurrently, so that they share a sync, and counts them.
async fn redrive_part(api: &Api, filter: &DlqFilter, part: &[(EventId, Timestamp)]) -> Result<u64, Problem> {
    let one = |(id, at): &(EventId, Timestamp)| api.store.redrive_matching(*id, filter.clone(), *at);
    let mut retried = 0;
    for sent in futures_util::future::join_all(part.iter().map(one)).await {
        match sent {
            Ok(()) => retried += 1,
            // Another request was faster.
            Err(StoreError::NotDead { .. } | StoreError::NoSuchEvent { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(retried)
}
