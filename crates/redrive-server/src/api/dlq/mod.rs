//! `/v1/dlq`: the dead-letter queue.

mod filter;
mod get;
mod purge;
mod retry;
mod view;

use utoipa_axum::routes;

use super::Routes;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get::list, purge::purge))
        .routes(routes!(get::groups))
        .routes(routes!(get::show))
        .routes(routes!(retry::retry_one))
        .routes(routes!(retry::retry_many))
}
