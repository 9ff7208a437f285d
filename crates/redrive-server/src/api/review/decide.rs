//! `POST /v1/review/{id}/retry` and `POST /v1/review/{id}/discard`: the decision of a person.

use axum::http::StatusCode;
use axum::response::Response;
use redrive::EventId;
use redrive_api::review::{DecidedMessage, DiscardMessage, ReleaseMessage, ReviewDecision};

use super::ReviewQueue;
use crate::api::auth::MayAdmin;
use crate::api::body::{MaybeJson, Named};
use crate::api::problem::Problem;
use crate::api::reply;

/// Longest reason, in characters.
const MAX_WHY_CHARS: usize = 1000;

/// Republish a message once more, to its queue or another one; a further failure returns it to review
#[utoipa::path(post, path = "/v1/review/{id}/retry", operation_id = "retry_review", tag = "review",
    security(("token" = ["admin"])), params(("id" = uuid::Uuid, Path, description = "The task")),
    request_body = Option<ReleaseMessage>, responses((status = 202, body = DecidedMessage)))]
pub(crate) async fn retry(
    ReviewQueue(review): ReviewQueue,
    MayAdmin(caller): MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<ReleaseMessage>,
) -> Result<Response, Problem> {
    review.retry(id, caller.name(), how.unwrap_or_default().queue).await?;
    Ok(reply::json(
        StatusCode::ACCEPTED,
        &DecidedMessage { id: *id.as_uuid(), decision: ReviewDecision::Released },
    ))
}

/// Discard a message; it stays on record as long as a retried one
#[utoipa::path(post, path = "/v1/review/{id}/discard", operation_id = "discard_review", tag = "review",
    security(("token" = ["admin"])), params(("id" = uuid::Uuid, Path, description = "The task")),
    request_body = Option<DiscardMessage>, responses((status = 202, body = DecidedMessage)))]
pub(crate) async fn discard(
    ReviewQueue(review): ReviewQueue,
    MayAdmin(caller): MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<DiscardMessage>,
) -> Result<Response, Problem> {
    let why = how.unwrap_or_default().why;
    if why.as_ref().is_some_and(|why| why.chars().count() > MAX_WHY_CHARS) {
        return Err(Problem::invalid(format!("why has at most {MAX_WHY_CHARS} characters")));
    }
    review.discard(id, caller.name(), why).await?;
    Ok(reply::json(
        StatusCode::ACCEPTED,
        &DecidedMessage { id: *id.as_uuid(), decision: ReviewDecision::Discarded },
    ))
}
