//! Handlers: async functions and closures, or blocking ones, with any usual error type.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use redrive_retry::{BoxError, Failure};

use crate::event::Event;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The result of a handler. The error can be any usual error type; the default accepts all of them with `?`.
pub type HandlerResult<E = BoxError> = Result<(), E>;

/// Handles events. Async functions and closures from [`Event`] to [`HandlerResult`] are handlers.
pub trait Handler: Send + Sync + 'static {
    /// Handles one event.
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>>;
}

impl<F, Fut, E> Handler for F
where
    F: Fn(Event) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let future = self(event);
        Box::pin(async move { future.await.map_err(Failure::new) })
    }
}

/// Makes a handler of a blocking function, which runs on tokio's blocking threads.
///
/// A timeout cannot interrupt it: look at [`Event::deadline`](crate::Event::deadline).
///
/// ```
/// # fn subscribe(bus: &redrive::EventBus) -> Result<(), redrive::BusError> {
/// use redrive::Event;
/// use redrive::handler::blocking;
///
/// bus.subscribe("report.*", blocking(|event: Event| std::fs::write("report.json", event.payload()))).register()?;
/// # Ok(()) }
/// ```
pub fn blocking<F, E>(handle: F) -> impl Handler
where
    F: Fn(Event) -> Result<(), E> + Send + Sync + 'static,
    E: Into<BoxError> + Send + 'static,
{
    let handle = std::sync::Arc::new(handle);
    move |event: Event| {
        let handle = std::sync::Arc::clone(&handle);
        async move {
            let _busy = event.clock.busy();
            match tokio::task::spawn_blocking(move || handle(event)).await {
                Ok(result) => result.map_err(Failure::new),
                Err(error) => match error.try_into_panic() {
                    Ok(payload) => Err(Failure::panic(payload.as_ref())),
                    Err(error) => Err(Failure::new(error)),
                },
            }
        }
    }
}

/// Runs a future and turns its panic into a failure.
pub(crate) async fn catch_panic<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Result<T, Failure> {
    // The future is dropped after a panic and never polled again, so no code sees a broken state.
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(Failure::panic(payload.as_ref()))),
    })
    .await
}
