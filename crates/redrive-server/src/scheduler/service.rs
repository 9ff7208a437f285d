//! HTTP API of the scheduler: review, metrics and health.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use redrive_api::health::Health;
use redrive_scheduler::{Review, Scheduler};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::metrics::families;
use crate::api::health::{self, STORE_TIMEOUT};
use crate::api::http_context::{HttpContext, ServiceState};
use crate::api::problem::{Code, Problem, shutting_down};
use crate::api::review;
use crate::api::{metrics, openapi, reply, with_middleware};
use crate::metric_family::Family;
use crate::telemetry::MetricSource;

/// State of the HTTP handlers.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) scheduler: Scheduler,
    pub(super) http: Arc<HttpContext>,
}

impl ServiceState for Service {
    fn http(&self) -> &HttpContext {
        &self.http
    }

    fn review(&self) -> Review {
        self.scheduler.review()
    }
}

impl MetricSource for Service {
    async fn families(&self) -> Vec<Family> {
        families(&self.scheduler.metrics().await, &self.http)
    }
}

/// Builds the router. Review needs a token; health and metrics are public.
pub(super) fn router(service: Arc<Service>) -> Router {
    let about = openapi::of(
        "Redrive retry scheduler",
        "Retries failed broker messages after a delay, then hands them to manual review.",
    );
    let public = health::lives_routes()
        .routes(routes!(health_alias))
        .routes(routes!(is_ready))
        .routes(routes!(show_metrics));
    let authenticated: OpenApiRouter<Arc<Service>> = review::routes();
    with_middleware(Arc::clone(&service.http), about, authenticated, public).with_state(service)
}

/// Report that the process is alive (alias of `/healthz`)
#[utoipa::path(get, path = "/health", tag = "health", responses((status = 200, body = Health)))]
async fn health_alias() -> Response {
    health::lives().await
}

/// Report whether the database can write and the broker is connected
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health)))]
async fn is_ready(State(service): State<Arc<Service>>) -> Response {
    if *service.http.stopping.borrow() {
        return shutting_down().into_response();
    }
    let broker = service.scheduler.counted().transport;
    let has_store = service.http.write_probe.can_write(service.scheduler.bus().store().as_ref()).await;
    let missing: Vec<_> = [
        (!has_store, "the database cannot write"),
        (!broker.consuming, "the broker connection for consuming is down"),
        (!broker.publishing, "the broker connection for publishing is down"),
        (broker.blocked, "the broker is short of memory or disk and blocks publishers"),
    ]
    .into_iter()
    .filter_map(|(is_missing, what)| is_missing.then_some(what))
    .collect();
    if missing.is_empty() {
        return reply::ok(&Health::ok());
    }
    let detail =
        format!("{}; the scheduler keeps retrying, and the log has the cause", missing.join(", and "));
    Problem::new(Code::Unavailable, detail).after(STORE_TIMEOUT).into_response()
}

/// Show the metrics in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn show_metrics(State(service): State<Arc<Service>>) -> Response {
    metrics::page(&service.families().await)
}
