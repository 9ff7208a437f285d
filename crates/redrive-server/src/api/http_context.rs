//! Shared context of all requests of a service.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Limits, Meter};
use crate::telemetry::RequestSpans;
use crate::tokens::cache::TokenCache;

/// Tokens, limits and measurements that apply to every request.
#[derive(Debug)]
pub(crate) struct HttpContext {
    pub(crate) tokens: TokenCache,
    pub(crate) limits: Limits,
    pub(crate) meter: Meter,
    /// Traces of requests, if there is a collector.
    pub(crate) request_spans: Option<RequestSpans>,
    /// Whether the service shuts down.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// State of handlers that has an HTTP context.
pub(crate) trait HasHttpContext: Send + Sync {
    fn http(&self) -> &HttpContext;
}

impl<T: HasHttpContext> HasHttpContext for Arc<T> {
    fn http(&self) -> &HttpContext {
        self.as_ref().http()
    }
}
