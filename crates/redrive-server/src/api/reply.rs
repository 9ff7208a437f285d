//! Responses of handlers that succeeded.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// 200 with a body.
pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    text(status, to_json(body))
}

/// The text of an answer, for a caller that stores or streams it.
pub(crate) fn to_json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("answers serialise")
}

/// A body that is serialised already.
pub(crate) fn text(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
