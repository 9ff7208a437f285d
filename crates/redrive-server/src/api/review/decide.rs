//! `POST /v1/review/{id}/retry` and `POST /v1/review/{id}/discard`: what a person has decided.

use axum::http::StatusCode;
use axum::response::Response;
use redrive::EventId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Desk;
use crate::api::auth::MayAdmin;
use crate::api::body::{MaybeJson, Named};
use crate::api::problem::Problem;
use crate::api::reply;

/// The longest reason, in characters.
const LONGEST_WHY: usize = 1000;

/// Where a message goes.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    /// Another queue than the one it came from. Needed where that is not known.
    #[schema(min_length = 1, max_length = 255)]
    queue: Option<String>,
}

/// Why a message is given up.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Discard {
    /// Is kept with the message, with who said so and when.
    #[schema(max_length = 1000)]
    why: Option<String>,
}

/// A message that was decided about.
#[derive(Debug, Serialize, ToSchema)]
struct Decided {
    #[schema(value_type = uuid::Uuid)]
    id: EventId,
    /// What was decided.
    #[schema(example = "released")]
    decision: &'static str,
}

/// Send a message to its queue once more, or to another one; if it fails again, it comes back to review
#[utoipa::path(post, path = "/v1/review/{id}/retry", operation_id = "retry_review", tag = "review",
    security(("token" = ["admin"])), params(("id" = uuid::Uuid, Path, description = "The task")),
    request_body = Option<Retry>, responses((status = 202, body = Decided)))]
pub(crate) async fn retry(
    Desk(review): Desk,
    MayAdmin(caller): MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<Retry>,
) -> Result<Response, Problem> {
    review.retry(id, caller.name(), how.unwrap_or_default().queue).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &Decided { id, decision: "released" }))
}

/// Give a message up for good; it stays known as long as what was retried
#[utoipa::path(post, path = "/v1/review/{id}/discard", operation_id = "discard_review", tag = "review",
    security(("token" = ["admin"])), params(("id" = uuid::Uuid, Path, description = "The task")),
    request_body = Option<Discard>, responses((status = 202, body = Decided)))]
pub(crate) async fn discard(
    Desk(review): Desk,
    MayAdmin(caller): MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<Discard>,
) -> Result<Response, Problem> {
    let why = how.unwrap_or_default().why;
    if why.as_ref().is_some_and(|why| why.chars().count() > LONGEST_WHY) {
        return Err(Problem::invalid(format!("why has at most {LONGEST_WHY} characters")));
    }
    review.discard(id, caller.name(), why).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &Decided { id, decision: "discarded" }))
}
