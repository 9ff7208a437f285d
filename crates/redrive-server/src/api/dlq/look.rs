//! `GET /v1/dlq`, `GET /v1/dlq/groups`, `GET /v1/dlq/{id}`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use redrive::{DlqPage, EventId, EventType, SubscriptionName};
use serde::Deserialize;
use utoipa::IntoParams;

use super::filter::{Filter, Reason, cursor};
use super::view::{DeadEntries, DeadSummary, DeadView, GroupView, Groups};
use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page::{self, Page};
use crate::api::problem::Problem;
use crate::api::time::Instant;
use crate::api::{Api, reply};

/// So many groups are shown. A store finds one more at most, which tells whether these are all.
const MOST_GROUPS: usize = 999;

/// A filter, and which part of the list. (One struct, because a query cannot be read into two.)
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only those of this type
    #[serde(rename = "type")]
    #[param(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")]
    event_type: Option<EventType>,
    /// Only those published at or after this instant
    since: Option<Instant>,
    /// Only those published before this instant
    until: Option<Instant>,
    /// Only those given up for this reason
    #[param(inline)]
    reason: Option<Reason>,
    /// Only those with this text in one of their errors
    #[param(max_length = 1000)]
    text: Option<String>,
    /// Only those of this group, as `/v1/dlq/groups` shows it
    #[param(max_length = 1000)]
    fingerprint: Option<String>,
    /// Only those that this endpoint or subscription has given up
    #[param(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[!-~]+$")]
    subscription: Option<SubscriptionName>,
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(max_length = 64)]
    after: Option<String>,
}

/// List dead events, the newest first
#[utoipa::path(get, path = "/v1/dlq", tag = "dlq", security(("token" = ["read"])), params(ListQuery),
    responses((status = 200, body = Page<DeadSummary>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let ListQuery { event_type, since, until, reason, text, fingerprint, subscription, limit, after } = query;
    let limit = page::limit(limit)?;
    let after = cursor(after.as_deref())?;
    let filter = Filter { event_type, since, until, reason, text, fingerprint, subscription };
    let page = DlqPage { offset: 0, limit: limit + 1, after };
    let found = api.store.dead_letters_in_short(filter.try_into()?, page).await?;
    Ok(reply::ok(&Page::of(found, limit, |dead| dead.cursor.to_string(), DeadSummary::from)))
}

/// Group dead events by what killed them
///
/// The 999 largest groups; `has_more` says whether there are others.
#[utoipa::path(get, path = "/v1/dlq/groups", tag = "dlq", security(("token" = ["read"])), params(Filter),
    responses((status = 200, body = Groups)))]
pub(crate) async fn groups(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Query(filter): Query<Filter>,
) -> Result<Response, Problem> {
    let groups = api.store.dead_groups(filter.try_into()?).await?;
    let has_more = groups.len() > MOST_GROUPS;
    let data = groups.into_iter().take(MOST_GROUPS).map(GroupView::from).collect();
    Ok(reply::ok(&Groups { data, has_more }))
}

/// Show what was given up of one event, with every failed attempt
#[utoipa::path(get, path = "/v1/dlq/{id}", tag = "dlq", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    responses((status = 200, body = DeadEntries)))]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Named(id): Named<EventId>,
) -> Result<Response, Problem> {
    let entries = api.store.dead_letter(id).await?;
    Ok(reply::ok(&DeadEntries { data: entries.into_iter().map(DeadView::from).collect() }))
}
