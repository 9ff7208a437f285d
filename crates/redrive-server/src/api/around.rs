//! What happens around every request: limits before it, headers and the log after it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use super::auth::too_many;
use super::door::Door;
use super::metrics::meter::known;
use super::origin::check_origin;
use super::problem::{Code, Problem};

/// How long a handler may take; a stream begins within this time and then goes on.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Is put on every response: nothing is guessed, kept, framed or run.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

pub(crate) async fn around(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    // What was asked for by its pattern: bounded, and without ids.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("(none)", MatchedPath::as_str);
    // Whoever looks whether the server lives makes no traces.
    let spans = door.request_spans.as_ref().filter(|_| !is_look(route));
    let span = spans.map(|spans| spans.begin(&mut request, known(&method), route));
    let mut response = answer(&door, request, next, route).await.unwrap_or_else(IntoResponse::into_response);
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(value);
    }
    let (status, took) = (response.status(), began.elapsed());
    if let Some(span) = span {
        span.end(status);
    }
    door.meter.count(&method, route, status, took);
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if status.is_server_error() {
        tracing::warn!(target: "redrive::http", %method, route, status = status.as_u16(), took_us, "request failed");
    } else {
        tracing::debug!(target: "redrive::http", %method, route, status = status.as_u16(), took_us, "request");
    }
    response
}

fn is_look(route: &str) -> bool {
    matches!(route, "/healthz" | "/health" | "/readyz")
}

async fn answer(door: &Door, request: Request, next: Next, route: &str) -> Result<Response, Problem> {
    // Whoever looks whether the server lives is always answered.
    if !is_look(route) {
        door.limits.requests.take().map_err(|wait| too_many("all together ask", wait))?;
    }
    check_origin(&request)?;
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(ANSWERED_WITHIN, handled).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(_)) => {
            tracing::error!(target: "redrive::http", route, "a handler panicked");
            Err(Problem::new(Code::Internal, "the server has a bug; its log says where"))
        }
        Err(_) => {
            let say = "the server did not finish in time, and what was asked may or may not have been done";
            Err(Problem::new(Code::OutcomeUnknown, say).after(Duration::from_secs(5)))
        }
    }
}
