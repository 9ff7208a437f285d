//! Handlers of a worker, and the [`Context`] that they get.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use redrive_retry::{BoxError, Failure};
use tokio::sync::watch;

use crate::subscriptions::LeasedEvent;

/// Result of a handler. The error can be any usual error type; the default accepts all of them with `?`.
pub type HandlerResult<E = BoxError> = Result<(), E>;

type BoxFuture = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// A handler of any type.
pub(super) type BoxHandler = Arc<dyn Fn(LeasedEvent, Context) -> BoxFuture + Send + Sync>;

pub(super) fn boxed<H, F, E>(handler: H) -> BoxHandler
where
    H: Fn(LeasedEvent, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    Arc::new(move |event, context| {
        let handling = handler(event, context);
        Box::pin(async move { handling.await.map_err(Failure::new) })
    })
}

/// Runs a future and turns its panic into a failure.
pub(super) async fn catch_panic<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let mut future = pin!(future);
    // The future is never polled again after a panic, so no code sees a broken state.
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(Failure::panic(payload.as_ref()))),
    })
    .await
}

/// Reason for which a handler is cancelled.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The lease has ended, or no server confirmed it in time: another consumer may have the event.
    LeaseLost,
    /// The handler's time limit has passed.
    TimedOut,
    /// The worker stops and did not wait longer.
    Stopping,
}

/// Second argument of a handler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    subscription: Arc<str>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    cancelled: watch::Receiver<Option<CancelReason>>,
}

impl Context {
    pub(super) fn new(
        subscription: Arc<str>,
        event: &LeasedEvent,
    ) -> (Self, watch::Sender<Option<CancelReason>>) {
        let (cancel, cancelled) = watch::channel(None);
        let metadata = |name: &str| event.metadata.get(name).cloned();
        let (traceparent, tracestate) = (metadata("traceparent"), metadata("tracestate"));
        (Context { subscription, traceparent, tracestate, cancelled }, cancel)
    }

    /// Name of the subscription.
    pub fn subscription(&self) -> &str {
        &self.subscription
    }

    /// Trace context of the publisher (W3C `traceparent`), if the event carries one: the parent of the handler's span.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Additional trace context of the publisher (W3C `tracestate`), if the event carries one.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// Reason for which the handler is cancelled, if it is.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        *self.cancelled.borrow()
    }

    /// Waits until the handler is cancelled. Tasks that a handler spawned learn by a clone of the context that its future was dropped.
    pub async fn cancelled(&self) -> CancelReason {
        let mut cancelled = self.cancelled.clone();
        match cancelled.wait_for(Option::is_some).await.map(|reason| *reason) {
            Ok(Some(reason)) => reason,
            // The handler has ended.
            _ => std::future::pending().await,
        }
    }
}
