//! Liveness (`/healthz`) and readiness (`/readyz`) checks.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use redrive::store::{Store, StoreError};
use redrive_api::health::Health;
use redrive_store::DocumentKey;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Code, Problem, shutting_down};
use super::{ApiState, Routes, reply};
use crate::tokens::token;

/// Timeout of the store in a readiness check.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Age up to which the result of a write answers further readiness checks.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> Routes {
    lives_routes().routes(routes!(is_ready))
}

/// The liveness check, for any service.
pub(crate) fn lives_routes<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(lives))
}

/// Check that the process is alive
///
/// For liveness checks. Needs no token, is not limited and does not touch the database.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Health)))]
pub(crate) async fn lives() -> Response {
    reply::ok(&Health::ok())
}

/// Check that the server accepts requests and its store can write
///
/// For readiness checks of load balancers. Needs no token and is not limited; many checks share one write.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health)))]
async fn is_ready(State(api): ApiState) -> Response {
    if *api.http.stopping.borrow() {
        return shutting_down().into_response();
    }
    if api.http.write_probe.can_write(api.store.as_ref()).await {
        return reply::ok(&Health::ok());
    }
    Problem::new(Code::Unavailable, "the store cannot write; the log of the server says why")
        .after(STORE_TIMEOUT)
        .into_response()
}

/// Whether this route is a health check, which is neither limited nor traced.
pub(crate) fn is_health_check(route: &str) -> bool {
    matches!(route, "/healthz" | "/health" | "/readyz")
}

/// Finds out by a write whether the store can write. Many checks share one write, because a check needs no token.
#[derive(Debug, Default)]
pub(crate) struct WriteProbe {
    /// The last result; locked during a write, so that further checks wait for its result.
    last: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl WriteProbe {
    /// Whether the store can write. The log has the reason if not.
    pub(crate) async fn can_write(&self, store: &dyn Store) -> bool {
        let mut last = self.last.lock().await;
        let recent = last.filter(|(at, _)| at.elapsed() < PROBE_INTERVAL);
        let check = async {
            match recent {
                // A store that has gone since the last write is noticed at once.
                Some(_) => store.versions(token::KIND).await.map(drop),
                None => write(store).await,
            }
        };
        if recent.is_some_and(|(_, can_write)| !can_write) {
            return false;
        }
        let why = match tokio::time::timeout(STORE_TIMEOUT, check).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", STORE_TIMEOUT.as_secs())),
        };
        // The check needs no token, so only the log has the address and the error of the store.
        if let Some(why) = &why {
            tracing::warn!(target: "redrive::http", error = why, "not ready: the store cannot write");
        }
        let at = recent.filter(|_| why.is_none()).map_or_else(Instant::now, |(at, _)| at);
        *last = Some((at, why.is_none()));
        why.is_none()
    }
}

/// Writes a document of its own.
async fn write(store: &dyn Store) -> Result<(), StoreError> {
    let key = DocumentKey::new("probe", "readiness")?;
    let body = "{}".to_owned();
    let written = match store.document(key.clone()).await? {
        None => store.create(key, body).await,
        Some(document) => store.replace(key, document.version, body).await,
    };
    match written {
        // Another process has written it.
        Ok(_) | Err(StoreError::DocumentTaken { .. } | StoreError::DocumentChanged { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
