//! `GET /v1/dlq`, `GET /v1/dlq/groups`, `GET /v1/dlq/{id}`.

use axum::extract::State;
use redrive::EventId;
use redrive::dlq::DlqPage;
use redrive_api::dlq::{DeadGroups, DeadLetter, DeadSummary, DlqFilter};
use redrive_api::page::{List, Page, PageQuery};

use super::filter::into_filter;
use super::view;
use crate::api::auth::MayRead;
use crate::api::body::{Listed, Named, Query};
use crate::api::page;
use crate::api::{ApiState, Reply, reply};

/// Groups in an answer. A store finds one more at most, which shows whether these are all.
const MAX_GROUPS: usize = 999;

/// List dead letters, newest first
#[utoipa::path(get, path = "/v1/dlq", tag = "dlq", security(("token" = ["read"])), params(DlqFilter, PageQuery),
    responses((status = 200, body = Page<DeadSummary>)))]
pub(crate) async fn list(
    State(api): ApiState,
    _: MayRead,
    Listed(filter, query): Listed<DlqFilter>,
) -> Reply {
    let limit = page::limit(&query)?;
    let after = page::dlq_cursor(query.after.as_deref())?;
    let page = DlqPage { offset: 0, limit: limit + 1, after };
    let found = api.store.dead_letter_summaries(into_filter(filter)?, page).await?;
    Ok(reply::ok(&page::page(found, limit, |dead| dead.cursor.to_string(), view::summary)))
}

/// Group dead letters by error fingerprint
///
/// The 999 largest groups; `has_more` says whether there are others.
#[utoipa::path(get, path = "/v1/dlq/groups", tag = "dlq", security(("token" = ["read"])), params(DlqFilter),
    responses((status = 200, body = DeadGroups)))]
pub(crate) async fn groups(State(api): ApiState, _: MayRead, Query(filter): Query<DlqFilter>) -> Reply {
    let groups = api.store.dead_groups(into_filter(filter)?).await?;
    let has_more = groups.len() > MAX_GROUPS;
    let data = groups.into_iter().take(MAX_GROUPS).map(view::group).collect();
    Ok(reply::ok(&DeadGroups { data, has_more }))
}

/// Show the dead letters of one event, with every failed attempt
#[utoipa::path(get, path = "/v1/dlq/{id}", tag = "dlq", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    responses((status = 200, body = List<DeadLetter>)))]
pub(crate) async fn show(State(api): ApiState, _: MayRead, Named(id): Named<EventId>) -> Reply {
    let entries = api.store.dead_letter(id).await?;
    Ok(reply::ok(&List { data: entries.into_iter().map(view::dead_letter).collect() }))
}
