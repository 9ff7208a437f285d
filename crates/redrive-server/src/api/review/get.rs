//! `GET /v1/review` and `GET /v1/review/{id}`.

use axum::response::Response;
use redrive::EventId;
use redrive::dlq::DlqPage;
use redrive_api::page::{Page, PageQuery};
use redrive_api::review::{ReviewSummary, ReviewTask};

use super::ReviewQueue;
use super::view;
use crate::api::auth::MayRead;
use crate::api::body::{Named, Query};
use crate::api::page;
use crate::api::problem::Problem;
use crate::api::reply;

/// List the messages in review, newest first
#[utoipa::path(get, path = "/v1/review", operation_id = "list_review", tag = "review", security(("token" = ["read"])),
    params(PageQuery), responses((status = 200, body = Page<ReviewSummary>)))]
pub(crate) async fn list(
    ReviewQueue(review): ReviewQueue,
    _: MayRead,
    Query(query): Query<PageQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(&query)?;
    let after = page::dlq_cursor(query.after.as_deref())?;
    let found = review.list(DlqPage { offset: 0, limit: limit + 1, after }).await?;
    Ok(reply::ok(&page::page(found, limit, |task| task.cursor.to_string(), view::summary)))
}

/// Show one failed message with its history, in review or not
#[utoipa::path(get, path = "/v1/review/{id}", operation_id = "show_review", tag = "review", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The task")), responses((status = 200, body = ReviewTask)))]
pub(crate) async fn show(
    ReviewQueue(review): ReviewQueue,
    _: MayRead,
    Named(id): Named<EventId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&view::task(review.show(id).await?)))
}
