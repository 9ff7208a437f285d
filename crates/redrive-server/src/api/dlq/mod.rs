//! `/v1/dlq`: what was given up, and the way back.

pub(crate) mod filter;
mod look;
mod purge;
mod retry;
mod view;

use utoipa_axum::routes;

use super::Routes;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(look::list, purge::purge))
        .routes(routes!(look::groups))
        .routes(routes!(look::show))
        .routes(routes!(retry::retry_one))
        .routes(routes!(retry::retry_many))
}
