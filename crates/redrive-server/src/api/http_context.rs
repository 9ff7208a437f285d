//! Shared context of all requests of a service.

use std::sync::Arc;

use redrive::store::Store;
use redrive_scheduler::Review;
use tokio::sync::watch;

use super::health::WriteProbe;
use super::{LimitArgs, Limits, Meter};
use crate::telemetry::{RequestSpans, Telemetry};
use crate::tokens::cache::TokenCache;

/// Tokens, limits and measurements that apply to every request.
#[derive(Debug)]
pub(crate) struct HttpContext {
    pub(crate) tokens: TokenCache,
    pub(crate) limits: Limits,
    pub(crate) meter: Meter,
    pub(crate) write_probe: WriteProbe,
    /// Traces of requests, if there is a collector.
    pub(crate) request_spans: Option<RequestSpans>,
    /// Whether the service shuts down.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl HttpContext {
    /// Context of a service on this store, with these limits.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        limits: &LimitArgs,
        telemetry: Option<&Telemetry>,
        stopping: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(HttpContext {
            tokens: TokenCache::new(store, limits.token_rate_limit),
            limits: Limits::new(limits),
            meter: Meter::default(),
            write_probe: WriteProbe::default(),
            request_spans: telemetry.map(Telemetry::request_spans),
            stopping,
        })
    }
}

/// State of a service: its HTTP context, and the review queue in its database.
pub(crate) trait ServiceState: Send + Sync {
    fn http(&self) -> &HttpContext;
    fn review(&self) -> Review;
}

impl<T: ServiceState> ServiceState for Arc<T> {
    fn http(&self) -> &HttpContext {
        self.as_ref().http()
    }

    fn review(&self) -> Review {
        self.as_ref().review()
    }
}
