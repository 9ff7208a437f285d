//! `GET /v1/stream`: events as they are published and as they end, as server-sent events.

mod change_detector;
mod client;
pub(crate) mod feed;
mod update;

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use redrive::subscription::Pattern;
use redrive_api::stream::StreamQuery;
use utoipa_axum::routes;

use self::client::Client;
use super::auth::MayRead;
use super::body::Query;
use super::problem::{Code, Problem};
use super::{ApiState, Reply, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().routes(routes!(stream))
}

/// Watch events as they are published and as they end
///
/// Server-sent events: `published`, `done` and `dead`, each with id, type and times. `lagged` says that some were left out because the
/// client reads too slowly, or too much happens; `end` says why the server ends the stream. Comments keep it alive.
#[utoipa::path(get, path = "/v1/stream", tag = "events", security(("token" = ["read"])), params(StreamQuery),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
async fn stream(State(api): ApiState, MayRead(caller): MayRead, Query(query): Query<StreamQuery>) -> Reply {
    let pattern = query.pattern.as_deref().unwrap_or("*").parse::<Pattern>();
    let pattern = pattern.map_err(Problem::invalid)?;
    let subscribed = api.feed.subscribe().ok_or_else(|| {
        Problem::new(Code::Unavailable, "the stream has as many clients as it may have: try again later")
            .after(Duration::from_secs(10))
    })?;
    let client = Client::new(api, caller, pattern, subscribed);
    let body = Body::from_stream(client.into_stream());
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}
