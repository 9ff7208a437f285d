//! [`Client`]: typed requests over a [`Transport`], repeated where that is safe.
//!
//! # Repetition of failed requests
//!
//! [`Client::http`] repeats a failed request by [`Retries::default`]; a client over another transport does not. [`Client::with_retries`] and
//! [`Client::without_retries`] change that.
//!
//! | request | repeated after |
//! |---|---|
//! | publish, lookups, lists, `put`, `remove`, ack, nack, extend, purge | any temporary error, a lost response included |
//! | creating endpoints and tokens, redriving, replays, pull | an answer which says that the server did nothing |
//! | the stream of events | nothing: its reader reconnects |
//!
//! A publish carries an `Idempotency-Key`, the same in every repetition, so that the event is stored once. `Retry-After` is a minimum of the
//! wait; one that is longer than [`Retries::max_retry_after`] is an error at once. An [`Error`] of a request that may have taken effect says
//! so: [`Error::outcome_unknown`].

mod call;
mod error;
#[cfg(feature = "http-client")]
mod http_transport;
mod paged;
mod repeat;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
pub use redrive_retry::{Clock, Jitter, RetryPolicy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

pub(crate) use self::call::Call;
pub use self::error::Error;
#[cfg(feature = "http-client")]
pub use self::http_transport::{HttpTransport, InvalidServer, ServerUrl};
pub use self::paged::Paged;
pub(crate) use self::repeat::Repeat;
pub use self::repeat::Retries;
use crate::page::{Page, PageQuery};

/// Maximum size of a response: 200 attempts of 64 KiB each, as text.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Body of a response.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Future of a response.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>>> + Send + 'a>>;

/// Result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Carries requests to a server: over HTTP, or in process.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Sends one request and waits until the response begins.
    fn call(&self, request: Request<Bytes>) -> ResponseFuture<'_>;
}

/// A client of the HTTP API. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Arc<dyn Transport>,
    retries: Option<Arc<Retries>>,
    clock: Clock,
}

impl Client {
    /// A client over this transport. It sends every request once; [`with_retries`](Self::with_retries) repeats.
    pub fn new(transport: impl Transport + 'static) -> Self {
        Client { transport: Arc::new(transport), retries: None, clock: Clock::system() }
    }

    /// Returns a client that repeats failed requests, and sends an `Idempotency-Key` with every publish.
    ///
    /// ```no_run
    /// # fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use redrive_api::client::{Client, Retries, RetryPolicy};
    /// use std::time::Duration;
    ///
    /// let policy = RetryPolicy::builder().max_attempts(3).base_delay(Duration::from_millis(50)).build()?;
    /// let client = Client::http("http://127.0.0.1:8080".parse()?, None)?
    ///     .with_retries(Retries::from(policy).max_retry_after(Duration::from_secs(5)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_retries(self, retries: impl Into<Retries>) -> Self {
        Client { retries: Some(Arc::new(retries.into())), ..self }
    }

    /// Returns a client that sends every request once, and an `Idempotency-Key` only where the caller gives one.
    #[must_use]
    pub fn without_retries(self) -> Self {
        Client { retries: None, ..self }
    }

    /// Returns a client that waits by this clock: for tests on virtual time.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Client { clock, ..self }
    }

    /// Clock of the waits between repetitions, and of workers.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Creates the key of one publish, if the client repeats requests.
    pub(crate) fn new_idempotency_key(&self) -> Option<String> {
        self.retries.as_ref().map(|_| Uuid::new_v4().to_string())
    }

    /// Sends `GET` and reads the response.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.send(&Call::get(path, query)?).await
    }

    /// Sends `GET` for one page of a list.
    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        filter: &impl Serialize,
        page: &PageQuery,
    ) -> Result<Page<T>> {
        self.send(&Call::page(path, filter, page)?).await
    }

    /// Iterates over the entries of all pages of a list.
    pub(crate) fn all<T: DeserializeOwned>(&self, path: &str, filter: &impl Serialize) -> Paged<T> {
        Paged::new(self.clone(), Call::get(path, filter))
    }

    /// Sends `POST` and reads the response. Repeated only if the server did nothing.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T> {
        self.send(&Call::post(path, body)?).await
    }

    /// Sends `POST` without a body and reads the response. Repeated only if the server did nothing.
    pub(crate) async fn post_empty<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.send(&Call::post_empty(path)).await
    }

    /// Sends `PUT` and reads the response.
    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.send(&Call::put(path, body)?).await
    }

    /// Sends `DELETE` and reads the response.
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.send(&Call::delete(path, query)?).await
    }

    /// Sends `DELETE`, whose response has no body.
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        self.repeated(&Call::delete(path, &())?).await.map(drop)
    }

    /// Sends `GET` and returns the body as it arrives. It has no time limit.
    pub(crate) async fn open(&self, path: &str, query: &impl Serialize) -> Result<Body> {
        self.begin(&Call::get(path, query)?).await.map(Response::into_body)
    }

    /// Sends a request until it succeeds or is not repeated any more, and reads the response as JSON.
    pub(crate) async fn send<T: DeserializeOwned>(&self, call: &Call) -> Result<T> {
        let bytes = self.repeated(call).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Unreadable(error.to_string()))
    }

    async fn repeated(&self, call: &Call) -> Result<Bytes> {
        let Some(retries) = self.retries.as_deref() else { return self.whole(call).await };
        let began = self.clock.steady();
        // Clients that failed together must not come back together.
        let seed = Uuid::new_v4().as_u64_pair().0;
        let mut requests = 1;
        loop {
            let limit = retries.policy().attempt_timeout().map(|limit| limit + call.server_wait);
            let error = match limit {
                None => self.whole(call).await,
                Some(limit) => tokio::select! {
                    result = self.whole(call) => result,
                    () = self.clock.sleep(limit) => Err(Error::TimedOut(limit)),
                },
            };
            let error = match error {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            let elapsed = self.clock.steady().since(began);
            match retries.wait_before_repeat(&error, call.repeat, requests, elapsed, seed) {
                Some(wait) => self.clock.sleep(wait).await,
                None => return Err(error),
            }
            requests += 1;
        }
    }

    /// Sends a request once and reads the whole response.
    async fn whole(&self, call: &Call) -> Result<Bytes> {
        whole(self.begin(call).await?).await
    }

    /// Sends a request once and returns the response, unless it is a problem.
    async fn begin(&self, call: &Call) -> Result<Response<Body>> {
        let response = self.transport.call(call.request()?).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response).await.unwrap_or_default();
        Err(Error::of_response(status, &headers, &body, self.clock.now()))
    }
}

/// Reads a whole body of at most [`MAX_RESPONSE_BYTES`].
async fn whole(response: Response<Body>) -> Result<Bytes> {
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::CutOff(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_RESPONSE_BYTES {
            return Err(Error::Unreadable(format!("more than {MAX_RESPONSE_BYTES} bytes")));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Defines a group of requests as a type around the client, and the client's method that returns it.
macro_rules! requests {
    ($(#[$doc:meta])* $group:ident, $(#[$method_doc:meta])* $method:ident) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug)]
        pub struct $group<'a>(&'a crate::client::Client);

        impl crate::client::Client {
            $(#[$method_doc])*
            pub fn $method(&self) -> $group<'_> {
                $group(self)
            }
        }
    };
}

pub(crate) use requests;

/// Encodes a part of a path.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(all(test, feature = "http-client"))]
mod tests {
    use super::*;
    use crate::events::{EventFilter, PublishEvent};

    #[test]
    fn requests_can_be_spawned_on_a_multi_threaded_runtime() {
        fn spawn<F: Future + Send>(_: F) {}
        let client = Client::http("http://127.0.0.1:1".parse().unwrap(), None).unwrap();
        let payload = serde_json::value::to_raw_value(&7).unwrap();
        spawn(client.events().list(&EventFilter::default(), &PageQuery::default()));
        spawn(client.events().publish(&PublishEvent::new("order.created", payload)));
    }
}
