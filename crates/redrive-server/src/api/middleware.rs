//! Request middleware: checks of headers and origin and the timeout before the handler, headers, metrics and log after it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use super::health::is_health_check;
use super::http_context::HttpContext;
use super::metrics::meter::known;
use super::origin::check_origin;
use super::problem::{Code, Problem};

/// Timeout of a handler; a stream has to begin within it.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(60);

/// Headers of every response: no sniffing, caching, framing or scripts.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
];

/// Measures and logs a request, and adds the security headers to its response.
pub(crate) async fn handle(
    State(http): State<Arc<HttpContext>>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    // The route is bounded and has no ids.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("(none)", MatchedPath::as_str);
    // Health checks are not traced.
    let spans = http.request_spans.as_ref().filter(|_| !is_health_check(route));
    let span = spans.map(|spans| spans.begin(&mut request, known(&method), route));
    let mut response = run_limited(request, next, route).await.unwrap_or_else(IntoResponse::into_response);
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(value);
    }
    let (status, took) = (response.status(), began.elapsed());
    if let Some(span) = span {
        span.end(status);
    }
    http.meter.count(&method, route, status, took);
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if status.is_server_error() {
        tracing::warn!(target: "redrive::http", %method, route, status = status.as_u16(), took_us, "request failed");
    } else {
        tracing::debug!(target: "redrive::http", %method, route, status = status.as_u16(), took_us, "request");
    }
    response
}

/// Refuses repeated headers and foreign origins, guards against panics and applies the timeout, then calls the handler.
async fn run_limited(request: Request, next: Next, route: &str) -> Result<Response, Problem> {
    refuse_repeated_headers(request.headers())?;
    check_origin(&request)?;
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(HANDLER_TIMEOUT, handled).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(_)) => {
            tracing::error!(target: "redrive::http", route, "a handler panicked");
            Err(Problem::new(Code::Internal, "the server has a bug; its log says where"))
        }
        Err(_) => {
            let say = "the server did not finish in time: the request may or may not have taken effect";
            Err(Problem::new(Code::OutcomeUnknown, say).after(Duration::from_secs(5)))
        }
    }
}

/// Refuses a request whose host, caller or key is ambiguous: a proxy may read the first of two headers, and this server the other one.
fn refuse_repeated_headers(headers: &HeaderMap) -> Result<(), Problem> {
    for name in [header::HOST.as_str(), header::AUTHORIZATION.as_str(), "idempotency-key"] {
        if headers.get_all(name).iter().nth(1).is_some() {
            return Err(Problem::invalid(format!("the header {name} occurs more than once: send it once")));
        }
    }
    Ok(())
}
