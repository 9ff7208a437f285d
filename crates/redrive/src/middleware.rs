//! Middleware: code around handlers, for tracing, measuring, tests, or anything that concerns more than one of them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use redrive_retry::Failure;

use crate::event::Event;
use crate::handler::{BoxFuture, Handler};

/// Wraps handlers. Async closures from `(Event, Next)` to `Result<(), Failure>` are middleware.
///
/// Middleware sees every attempt of every event, and its result is the result of the attempt. Its time counts towards the timeout of the
/// subscription, and its panic is a failure like a handler's.
///
/// ```
/// # async fn open() -> Result<(), redrive::BusError> {
/// use redrive::middleware::Next;
/// use redrive::{Event, EventBus};
///
/// let bus = EventBus::builder()
///     .middleware(|event: Event, next: Next| async move {
///         let (id, began) = (event.id(), std::time::Instant::now());
///         let result = next.run(event).await;
///         println!("{id} took {:?}", began.elapsed());
///         result
///     })
///     .open("events.db")
///     .await?;
/// # Ok(()) }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Handles one event, normally by running `next`.
    fn handle(&self, event: Event, next: Next) -> BoxFuture<Result<(), Failure>>;
}

impl<F, Fut> Middleware for F
where
    F: Fn(Event, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    fn handle(&self, event: Event, next: Next) -> BoxFuture<Result<(), Failure>> {
        Box::pin(self(event, next))
    }
}

/// The inner middleware and the handler. May be run more than once, or not at all.
#[derive(Clone)]
pub struct Next {
    handler: Arc<dyn Handler>,
}

impl Next {
    /// Runs the inner middleware and the handler.
    pub fn run(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        self.handler.handle(event)
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

/// A handler wrapped in one middleware.
struct Layered {
    middleware: Arc<dyn Middleware>,
    next: Next,
}

impl Handler for Layered {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        self.middleware.handle(event, self.next.clone())
    }
}

/// Wraps a handler in middleware; the first one is outermost.
pub(crate) fn surround(handler: Arc<dyn Handler>, middleware: &[Arc<dyn Middleware>]) -> Arc<dyn Handler> {
    middleware.iter().rev().fold(handler, |handler, middleware| {
        Arc::new(Layered { middleware: Arc::clone(middleware), next: Next { handler } })
    })
}
