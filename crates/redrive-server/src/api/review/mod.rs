//! `/v1/review`: the review queue of the retry scheduler. It is in the database, so every service on the database serves it.

mod decide;
mod get;
mod view;

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use redrive_scheduler::{Review, SchedulerError};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::http_context::HasHttpContext;
use super::problem::{Code, Problem};

/// State of handlers whose database has a review queue.
pub(crate) trait Reviewed: HasHttpContext {
    fn review(&self) -> Review;
}

impl<T: Reviewed> Reviewed for Arc<T> {
    fn review(&self) -> Review {
        self.as_ref().review()
    }
}

pub(crate) fn routes<S: Reviewed + Clone + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new()
        .routes(routes!(get::list))
        .routes(routes!(get::show))
        .routes(routes!(decide::retry))
        .routes(routes!(decide::discard))
}

/// The review queue of the service.
#[derive(Debug)]
pub(crate) struct ReviewQueue(Review);

impl<S: Reviewed> FromRequestParts<S> for ReviewQueue {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(ReviewQueue(state.review()))
    }
}

impl From<SchedulerError> for Problem {
    fn from(error: SchedulerError) -> Self {
        let said = error.to_string();
        match error {
            SchedulerError::Store(error) => error.into(),
            SchedulerError::Bus(error) => error.into(),
            SchedulerError::NoSuchTask { .. } => Problem::new(Code::NotFound, said),
            SchedulerError::NotInReview { .. } => Problem::new(Code::NotInReview, said),
            SchedulerError::NoQueue { .. } => Problem::invalid(said),
            _ => {
                tracing::error!(target: "redrive::http", error = said, "a retry task cannot be worked with");
                Problem::new(Code::Internal, said)
            }
        }
    }
}
