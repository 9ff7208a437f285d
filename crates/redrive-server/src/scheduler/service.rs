//! The scheduler as its HTTP side sees it: who may come in, what waits for a person, what is counted, and whether it can work.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use redrive_scheduler::{Review, Scheduler};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::measures;
use crate::api::door::{BehindDoor, Door};
use crate::api::health::{self, ANSWERS_WITHIN, Health, store_answers};
use crate::api::problem::{Code, Problem, shutting_down};
use crate::api::review::{self, Reviewed};
use crate::api::{Family, behind, metrics, openapi, reply};
use crate::telemetry::Measured;

/// What handlers work with.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) scheduler: Scheduler,
    pub(super) door: Arc<Door>,
}

impl BehindDoor for Service {
    fn door(&self) -> &Door {
        &self.door
    }
}

impl Reviewed for Service {
    fn review(&self) -> Review {
        self.scheduler.review()
    }
}

impl Measured for Service {
    async fn families(&self) -> Vec<Family> {
        measures::families(&self.scheduler.metrics().await, &self.door)
    }
}

/// Everything that is served. What is in review is for callers; how the service does is for everybody who can reach it.
pub(super) fn router(service: Arc<Service>) -> Router {
    let about = openapi::of(
        "Redrive retry scheduler",
        "Failed broker messages come back on time, or reach a person.",
    );
    let for_everybody = health::lives_routes()
        .routes(routes!(lives_too))
        .routes(routes!(is_ready))
        .routes(routes!(show_metrics));
    let for_callers: OpenApiRouter<Arc<Service>> = review::routes();
    behind(Arc::clone(&service.door), about, for_callers, for_everybody).with_state(service)
}

/// The process lives: another name of `/healthz`
#[utoipa::path(get, path = "/health", tag = "health", responses((status = 200, body = Health)))]
async fn lives_too() -> Response {
    health::lives().await
}

/// The database answers, and the broker is connected to
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Health)))]
async fn is_ready(State(service): State<Arc<Service>>) -> Response {
    if *service.door.stopping.borrow() {
        return shutting_down().into_response();
    }
    let broker = service.scheduler.counted().transport;
    let has_store = store_answers(service.scheduler.bus().store().as_ref()).await;
    let missing: Vec<_> = [
        (!has_store, "the database does not answer"),
        (!broker.consuming, "there is no connection to the broker to receive by"),
        (!broker.publishing, "there is no connection to the broker to publish by"),
        (broker.blocked, "the broker is short of memory or disk and takes nothing"),
    ]
    .into_iter()
    .filter_map(|(is_missing, what)| is_missing.then_some(what))
    .collect();
    if missing.is_empty() {
        return reply::ok(&Health::OK);
    }
    let say = format!("{}; it is tried again without end, and the log says why", missing.join(", and "));
    Problem::new(Code::Unavailable, say).after(ANSWERS_WITHIN).into_response()
}

/// Show the metrics in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn show_metrics(State(service): State<Arc<Service>>) -> Response {
    metrics::page(&service.families().await)
}
