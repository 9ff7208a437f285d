//! `/v1/review`: failed messages of the retry scheduler that wait for a person. They stand in the database, so every service that
//! works on it can show them.

mod decide;
mod look;
mod view;

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use redrive_scheduler::{Review, SchedulerError};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::door::BehindDoor;
use super::problem::{Code, Problem};

/// What handlers work with, if there is a database with such messages behind it.
pub(crate) trait Reviewed: BehindDoor {
    fn review(&self) -> Review;
}

impl<T: Reviewed> Reviewed for Arc<T> {
    fn review(&self) -> Review {
        self.as_ref().review()
    }
}

pub(crate) fn routes<S: Reviewed + Clone + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new()
        .routes(routes!(look::list))
        .routes(routes!(look::show))
        .routes(routes!(decide::retry))
        .routes(routes!(decide::discard))
}

/// Where it is decided about them.
#[derive(Debug)]
pub(crate) struct Desk(Review);

impl<S: Reviewed> FromRequestParts<S> for Desk {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Desk(state.review()))
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
