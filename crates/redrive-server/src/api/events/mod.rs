//! `/v1/events`: what goes in, and what has become of it.

mod batch;
mod look;
mod new_event;
mod publish;
mod view;

use utoipa_axum::routes;

pub(crate) use self::view::AttemptView;
use super::Routes;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(look::list, publish::publish))
        .routes(routes!(batch::publish_batch))
        .routes(routes!(look::show))
}
