//! The HTTP API. Each resource is a file with its routes, its types and its handlers; [`router`] puts them together.
//!
//! To add a resource: write `api/<noun>.rs` with a function `routes()`, its handlers under `#[utoipa::path(…)]` (which is the
//! route and the description at once), and merge it below. A handler asks for what it needs by its arguments: a scope
//! ([`auth::MayRead`] and its like), a body ([`body::Json`]), a query ([`body::Query`]), the id in the path ([`body::Named`]).

mod around;
pub(crate) mod auth;
pub(crate) mod body;
mod dlq;
mod endpoints;
mod events;
mod health;
mod idempotency;
mod limits;
mod metrics;
mod openapi;
pub(crate) mod origin;
mod page;
pub(crate) mod problem;
mod replays;
mod reply;
mod retry;
mod stats;
mod stream;
mod subscriptions;
pub(crate) mod time;
mod tokens;

use std::sync::Arc;

use axum::{Router, middleware};
use redrive::{EventBus, Store};
use redrive_retry::idempotency::IdempotencyStore;
use redrive_webhook::Webhooks;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::limits::{LimitArgs, Limits};
pub(crate) use self::metrics::families;
pub(crate) use self::metrics::family::{Family, Kind, Labels, Times, Value};
pub(crate) use self::metrics::meter::Meter;
use self::problem::{Code, Problem};
pub(crate) use self::stream::feed::Feed;
use crate::queues::Queues;
use crate::telemetry::RequestSpans;
use crate::tokens::book::TokenBook;

/// What handlers work with.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) bus: EventBus,
    pub(crate) store: Arc<dyn Store>,
    /// What was answered to requests with an `Idempotency-Key`.
    pub(crate) keys: Arc<dyn IdempotencyStore>,
    pub(crate) tokens: TokenBook,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) limits: Limits,
    pub(crate) meter: Meter,
    pub(crate) feed: Feed,
    /// Where there is a collector.
    pub(crate) request_spans: Option<RequestSpans>,
    /// Whether the server shuts down.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// Routes with what they need.
type Routes = OpenApiRouter<Arc<Api>>;

/// Everything that is served.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let for_callers = Routes::new()
        .merge(events::routes())
        .merge(dlq::routes())
        .merge(stats::routes())
        .merge(stream::routes())
        .merge(metrics::routes())
        .merge(endpoints::routes())
        .merge(replays::routes())
        .merge(subscriptions::routes())
        .merge(tokens::routes())
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), auth::identify));
    let for_everybody = Routes::new().merge(health::routes());
    let (router, document) = OpenApiRouter::with_openapi(openapi::about())
        .merge(for_callers)
        .merge(for_everybody)
        .split_for_parts();
    router
        .merge(openapi::route(document))
        .fallback(|| async {
            Problem::new(Code::NotFound, "there is nothing at this path: see /openapi.json")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "use a method that the header `allow` names")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&api), around::around))
        .with_state(api)
}
