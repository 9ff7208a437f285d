//! `/v1/endpoints`: the receivers of webhooks.

mod attempts;
mod change;
mod get;
mod patch;
mod secrets;
mod view;

use redrive_webhook::{EndpointStoreError, ReplayError, WebhooksError};
use utoipa_axum::routes;

use super::Routes;
use super::problem::{Code, Problem};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get::list, change::create))
        .routes(routes!(get::show, change::update, change::remove))
        .routes(routes!(change::test))
        .routes(routes!(attempts::attempts))
        .routes(routes!(secrets::show))
        .routes(routes!(secrets::rotate))
}

impl From<EndpointStoreError> for Problem {
    fn from(error: EndpointStoreError) -> Self {
        let said = error.to_string();
        match error {
            EndpointStoreError::Endpoint(_) | EndpointStoreError::Unreachable(_) => Problem::invalid(said),
            EndpointStoreError::NotFound { .. } => Problem::new(Code::NotFound, said),
            EndpointStoreError::Changed { .. } | EndpointStoreError::TooMany => {
                Problem::new(Code::Conflict, said)
            }
            EndpointStoreError::Store(error) => error.into(),
            // The stored endpoint is at fault, not the server: the message says what to do.
            EndpointStoreError::Sealed { .. } | EndpointStoreError::Unreadable { .. } => {
                Problem::new(Code::Conflict, said)
            }
            _ => Problem::new(Code::Internal, said),
        }
    }
}

impl From<WebhooksError> for Problem {
    fn from(error: WebhooksError) -> Self {
        match error {
            WebhooksError::Endpoints(error) => error.into(),
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
