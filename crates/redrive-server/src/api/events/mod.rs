//! `/v1/events`: publish events and look them up.

mod batch;
mod get;
mod new_event;
mod publish;
mod view;

use utoipa_axum::routes;

pub(crate) use self::view::attempt;
use super::Routes;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get::list, publish::publish))
        .routes(routes!(batch::publish_batch))
        .routes(routes!(get::show))
}
