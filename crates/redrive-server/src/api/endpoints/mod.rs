//! `/v1/endpoints`: where webhooks go.

mod attempts;
mod change;
mod look;
mod secrets;
mod view;
mod wish;

use redrive_webhook::{BookError, ReplayError, WebhooksError};
use utoipa_axum::routes;

use super::Routes;
use super::problem::{Code, Problem};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(look::list, change::create))
        .routes(routes!(look::show, change::update, change::remove))
        .routes(routes!(change::test))
        .routes(routes!(attempts::attempts))
        .routes(routes!(secrets::show))
        .routes(routes!(secrets::rotate))
}

impl From<BookError> for Problem {
    fn from(error: BookError) -> Self {
        let said = error.to_string();
        match error {
            BookError::Endpoint(_) | BookError::Unreachable(_) => Problem::invalid(said),
            BookError::NotFound { .. } => Problem::new(Code::NotFound, said),
            BookError::Changed { .. } | BookError::TooMany => Problem::new(Code::Conflict, said),
            BookError::Store(error) => error.into(),
            // Nothing is wrong with the server: it says what to do.
            BookError::Sealed { .. } | BookError::Unreadable { .. } => Problem::new(Code::Conflict, said),
            _ => Problem::new(Code::Internal, said),
        }
    }
}

impl From<WebhooksError> for Problem {
    fn from(error: WebhooksError) -> Self {
        match error {
            WebhooksError::Book(error) => error.into(),
            WebhooksError::Bus(error) => error.into(),
            WebhooksError::Store(error) => error.into(),
            error => Problem::new(Code::Internal, error.to_string()),
        }
    }
}

impl From<ReplayError> for Problem {
    fn from(error: ReplayError) -> Self {
        let said = error.to_string();
        match error {
            ReplayError::NotFound { .. } => Problem::new(Code::NotFound, said),
            ReplayError::Id { .. } | ReplayError::Rate => Problem::invalid(said),
            ReplayError::TooMany => Problem::new(Code::Conflict, said),
            ReplayError::Store(error) => error.into(),
            error => Problem::new(Code::Internal, error.to_string()),
        }
    }
}
