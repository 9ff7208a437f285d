//! `GET /v1/review` and `GET /v1/review/{id}`.

use axum::response::Response;
use redrive::{DlqPage, EventId};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Desk;
use super::view::{InReviewView, TaskView};
use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::dlq::filter::cursor;
use crate::api::page::{self, Page};
use crate::api::problem::Problem;
use crate::api::reply;

/// Which page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(max_length = 64)]
    after: Option<String>,
}

/// List the failed messages that wait for a person, the newest first
#[utoipa::path(get, path = "/v1/review", operation_id = "list_review", tag = "review", security(("token" = ["read"])),
    params(ListQuery), responses((status = 200, body = Page<InReviewView>)))]
pub(crate) async fn list(
    Desk(review): Desk,
    _: MayRead,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let after = cursor(query.after.as_deref())?;
    let found = review.list(DlqPage { offset: 0, limit: limit + 1, after }).await?;
    Ok(reply::ok(&Page::of(found, limit, |task| task.cursor.to_string(), InReviewView::from)))
}

/// Show one failed message with its history, whether it still waits for a person or not
#[utoipa::path(get, path = "/v1/review/{id}", operation_id = "show_review", tag = "review", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The task")), responses((status = 200, body = TaskView)))]
pub(crate) async fn show(
    Desk(review): Desk,
    _: MayRead,
    Named(id): Named<EventId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&TaskView::from(review.show(id).await?)))
}
