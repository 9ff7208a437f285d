//! Liveness (`/healthz`) and readiness (`/readyz`) checks.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use redrive::store::Store;
use redrive_api::health::Health;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Code, Problem, shutting_down};
use super::{ApiState, Routes, reply};
use crate::tokens::token;

/// Timeout of the store in a readiness check.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> Routes {
    lives_routes().routes(routes!(is_ready))
}

/// The liveness check, for any service.
pub(crate) fn lives_routes<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(lives))
}

/// Check that the process is alive
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Health)))]
pub(crate) async fn lives() -> Response {
    reply::ok(&Health::ok())
}

/// Check that the server accepts requests and its store answers
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health)))]
async fn is_ready(State(api): ApiState) -> Response {
    if *api.http.stopping.borrow() {
        return shutting_down().into_response();
    }
    if store_answers(api.store.as_ref()).await {
        return reply::ok(&Health::ok());
    }
    Problem::new(Code::Unavailable, "the store does not answer; the log of the server says why")
        .after(STORE_TIMEOUT)
        .into_response()
}

/// Whether the store answers. The log has the reason if not.
pub(crate) async fn store_answers(store: &dyn Store) -> bool {
    let why = match tokio::time::timeout(STORE_TIMEOUT, store.versions(token::KIND)).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", STORE_TIMEOUT.as_secs()),
    };
    // The check needs no token, so only the log has the address and the error of the store.
    tracing::warn!(target: "redrive::http", error = why, "not ready: the store does not answer");
    false
}
