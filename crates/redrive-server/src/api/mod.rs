//! The HTTP API. Each resource is a file with its routes, its types and its handlers; [`router`] puts them together.
//!
//! To add a resource: write `api/<noun>.rs` with a function `routes()`, its handlers under `#[utoipa::path(…)]` (which is the
//! route and the description at once), and merge it below. A handler asks for what it needs by its arguments: a scope
//! ([`auth::MayRead`] and its like), a body ([`body::Json`]), a query ([`body::Query`]), the id in the path ([`body::Named`]).

pub(crate) mod around;
pub(crate) mod auth;
pub(crate) mod body;
mod dlq;
pub(crate) mod door;
mod endpoints;
mod events;
pub(crate) mod health;
mod idempotency;
mod limits;
pub(crate) mod metrics;
pub(crate) mod openapi;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod problem;
mod replays;
pub(crate) mod reply;
mod retry;
pub(crate) mod review;
mod stats;
mod stream;
mod subscriptions;
pub(crate) mod time;
mod tokens;

use std::sync::Arc;

use axum::{Router, middleware};
use redrive::{EventBus, Store};
use redrive_retry::idempotency::IdempotencyStore;
use redrive_scheduler::Review;
use redrive_webhook::Webhooks;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::door::{BehindDoor, Door};
pub(crate) use self::limits::{LimitArgs, Limits};
pub(crate) use self::metrics::family::{Family, Kind, Labels, Times, Value};
pub(crate) use self::metrics::meter::Meter;
use self::problem::{Code, Problem};
pub(crate) use self::stream::feed::Feed;
use crate::queues::Queues;

/// What handlers work with.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) bus: EventBus,
    pub(crate) store: Arc<dyn Store>,
    /// What was answered to requests with an `Idempotency-Key`.
    pub(crate) keys: Arc<dyn IdempotencyStore>,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) feed: Feed,
    pub(crate) door: Arc<Door>,
}

impl BehindDoor for Api {
    fn door(&self) -> &Door {
        &self.door
    }
}

impl review::Reviewed for Api {
    fn review(&self) -> Review {
        Review::new(Arc::clone(&self.store))
    }
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
        .merge(review::routes());
    let door = Arc::clone(&api.door);
    behind(door, openapi::about(), for_callers, health::routes()).with_state(api)
}

/// Puts what is for callers and what is for everybody behind a door.
pub(crate) fn behind<S: BehindDoor + Clone + 'static>(
    door: Arc<Door>,
    about: OpenApi,
    for_callers: OpenApiRouter<S>,
    for_everybody: OpenApiRouter<S>,
) -> Router<S> {
    let for_callers =
        for_callers.route_layer(middleware::from_fn_with_state(Arc::clone(&door), auth::identify));
    let (router, document) =
        OpenApiRouter::with_openapi(about).merge(for_callers).merge(for_everybody).split_for_parts();
    router
        .merge(openapi::route(document))
        .fallback(|| async {
            Problem::new(Code::NotFound, "there is nothing at this path: see /openapi.json")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "use a method that the header `allow` names")
        })
        .layer(middleware::from_fn_with_state(door, around::around))
}
