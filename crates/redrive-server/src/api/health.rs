//! Whether the process lives, and whether it can work: for whoever starts it, restarts it, or sends it requests.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use redrive::Store;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Code, Problem, shutting_down};
use super::{Api, Routes, reply};
use crate::tokens::token;

/// How long the store may take to say something.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> Routes {
    lives_routes().routes(routes!(is_ready))
}

/// Whether the process lives, of whatever service.
pub(crate) fn lives_routes<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(lives))
}

/// All is well.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    #[schema(example = "ok")]
    status: &'static str,
}

impl Health {
    pub(crate) const OK: Health = Health { status: "ok" };
}

/// The process lives
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Health)))]
pub(crate) async fn lives() -> Response {
    reply::ok(&Health::OK)
}

/// The server takes requests and its store answers
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health)))]
async fn is_ready(State(api): State<Arc<Api>>) -> Response {
    if *api.door.stopping.borrow() {
        return shutting_down().into_response();
    }
    if store_answers(api.store.as_ref()).await {
        return reply::ok(&Health::OK);
    }
    Problem::new(Code::Unavailable, "the store does not answer; the log of the server says why")
        .after(ANSWERS_WITHIN)
        .into_response()
}

/// Whether the store says something. If not, why is in the log.
pub(crate) async fn store_answers(store: &dyn Store) -> bool {
    let why = match tokio::time::timeout(ANSWERS_WITHIN, store.versions(token::KIND)).await {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("nothing was heard of it for {} s", ANSWERS_WITHIN.as_secs()),
    };
    // Everybody may ask, so where the store is and what is wrong with it is for the log alone.
    tracing::warn!(target: "redrive::http", error = why, "not ready: the store does not answer");
    false
}
