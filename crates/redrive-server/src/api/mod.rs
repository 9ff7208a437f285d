//! The HTTP API. Each resource is a file with its routes and handlers over the types of `redrive-api`; `router` merges them.
//!
//! To add a resource: put its types into `redrive-api`, write `api/<noun>.rs` with a function `routes()` and handlers under
//! `#[utoipa::path(…)]` (route and description at once), and merge it below. A handler takes what it needs as arguments: a scope
//! (`auth::MayRead`), a body (`body::Json`), a query (`body::Query`, `body::Listed`), the id in the path (`body::Named`).

pub(crate) mod auth;
pub(crate) mod body;
mod body_memory;
mod diagnostics;
mod dlq;
mod endpoints;
mod events;
pub(crate) mod health;
pub(crate) mod http_context;
mod idempotency;
mod limits;
pub(crate) mod metrics;
pub(crate) mod middleware;
mod objects_only;
pub(crate) mod openapi;
mod origin;
pub(crate) mod page;
pub(crate) mod peer;
pub(crate) mod problem;
mod replays;
pub(crate) mod reply;
mod retry;
pub(crate) mod review;
mod stats;
mod stream;
mod subscriptions;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use redrive::EventBus;
use redrive::store::Store;
use redrive_retry::idempotency::IdempotencyStore;
use redrive_scheduler::Review;
use redrive_webhook::{EndpointStore, RunningWebhookTasks, Webhooks};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::http_context::{HttpContext, ServiceState};
pub use self::limits::LimitArgs;
pub(crate) use self::limits::{Connections, Limits};
use self::metrics::audit_log::AuditLog;
pub(crate) use self::metrics::meter::Meter;
use self::problem::{Code, Problem};
pub(crate) use self::stream::feed::Feed;
use crate::failure::Failure;
use crate::pull_subscriptions::PullSubscriptions;

/// State of the handlers.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) bus: EventBus,
    pub(crate) store: Arc<dyn Store>,
    /// Store of idempotency keys and recorded responses.
    pub(crate) idempotency: Arc<dyn IdempotencyStore>,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) pull_subscriptions: Arc<PullSubscriptions>,
    pub(crate) feed: Feed,
    pub(crate) http: Arc<HttpContext>,
    /// Whether this process dispatches, so that it knows the state of circuit breakers.
    pub(crate) dispatches: bool,
    /// Counters of the audit log in the database.
    pub(crate) audit_log: AuditLog,
}

impl Api {
    /// Opens endpoints and pull subscriptions on a bus; call it before the bus is started, so that no event misses them. Only in a
    /// process that dispatches, the tasks of webhooks run, until the second value is dropped.
    pub(crate) async fn open(
        bus: EventBus,
        idempotency: Arc<dyn IdempotencyStore>,
        endpoints: EndpointStore,
        http: Arc<HttpContext>,
        dispatches: bool,
    ) -> Result<(Arc<Self>, Option<RunningWebhookTasks>), Failure> {
        let (webhooks, tasks) = Webhooks::open(bus.clone(), endpoints).await.map_err(Failure::failed)?;
        let tasks = dispatches.then(|| tasks.start());
        let pull_subscriptions = PullSubscriptions::open(bus.clone()).await.map_err(Failure::failed)?;
        let store = Arc::clone(bus.store());
        let (feed, audit_log) = (Feed::new(), AuditLog::default());
        let api = Arc::new(Api {
            bus,
            store,
            idempotency,
            webhooks,
            pull_subscriptions,
            feed,
            http,
            dispatches,
            audit_log,
        });
        let polling = Arc::clone(&api);
        tokio::spawn(async move {
            polling.feed.run(Arc::clone(&polling.store), polling.http.stopping.clone()).await;
        });
        Ok((api, tasks))
    }
}

impl ServiceState for Api {
    fn http(&self) -> &HttpContext {
        &self.http
    }

    fn review(&self) -> Review {
        Review::new(Arc::clone(&self.store))
    }
}

/// Extracts the state of the handlers.
type ApiState = State<Arc<Api>>;

/// Response of a handler.
type Reply = Result<Response, Problem>;

/// Routes on the state of the handlers.
type Routes = OpenApiRouter<Arc<Api>>;

/// Routes of `redrive serve` that require authentication.
fn authenticated_routes() -> Routes {
    Routes::new()
        .merge(events::routes())
        .merge(dlq::routes())
        .merge(stats::routes())
        .merge(diagnostics::routes())
        .merge(stream::routes())
        .merge(metrics::routes())
        .merge(endpoints::routes())
        .merge(replays::routes())
        .merge(subscriptions::routes())
        .merge(tokens::routes())
        .merge(review::routes())
}

/// All routes of `redrive serve`.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let http = Arc::clone(&api.http);
    with_middleware(http, openapi::about(), authenticated_routes(), health::routes()).with_state(api)
}

/// Adds authentication to the authenticated routes, and the request middleware to all.
pub(crate) fn with_middleware<S: ServiceState + Clone + 'static>(
    http: Arc<HttpContext>,
    about: OpenApi,
    authenticated: OpenApiRouter<S>,
    public: OpenApiRouter<S>,
) -> Router<S> {
    let authenticated = authenticated.route_layer(from_fn_with_state(Arc::clone(&http), auth::identify));
    let limit_public = from_fn_with_state(Arc::clone(&http), auth::limit_public);
    let public = public.route_layer(limit_public.clone());
    let refusal = |code, say: &'static str| {
        let http = Arc::clone(&http);
        move || {
            let limited = http.limits.take_anonymous();
            async move { limited.err().unwrap_or_else(|| Problem::new(code, say)) }
        }
    };
    let (router, document) =
        OpenApiRouter::with_openapi(about).merge(authenticated).merge(public).split_for_parts();
    router
        .merge(openapi::route(document).route_layer(limit_public))
        .fallback(refusal(Code::NotFound, "there is nothing at this path: see /openapi.json"))
        .method_not_allowed_fallback(refusal(
            Code::MethodNotAllowed,
            "use a method that the header `allow` names",
        ))
        .layer(from_fn_with_state(http, self::middleware::handle))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operation_ids_are_unique() {
        let document =
            serde_json::to_value(authenticated_routes().merge(health::routes()).into_openapi()).unwrap();
        let mut seen = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                assert!(
                    seen.insert(id.clone()),
                    "{method} {path} has the operation id {id} of another operation"
                );
            }
        }
        assert!(seen.len() >= 35, "{seen:?}");
    }
}
