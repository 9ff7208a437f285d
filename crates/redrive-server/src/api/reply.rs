//! What is answered when all went well.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// 200 with a body.
pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    text(status, serde_json::to_string(body).expect("what is answered always serialises"))
}

/// A body that is written already.
pub(crate) fn text(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
