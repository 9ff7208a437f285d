//! The client: typed requests over a [`Transport`].

#[cfg(feature = "http-client")]
mod http_transport;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "http-client")]
pub use self::http_transport::{HttpTransport, InvalidServer, ServerUrl};
use crate::page::{Page, PageQuery};
use crate::problem::Problem;

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

/// Error of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused the request.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// An error status without a problem document; another program probably answered.
    #[error("the server has answered {0}: is there a redrive server behind the address?")]
    Unexpected(StatusCode),
    /// The response is not what this release reads.
    #[error(
        "the response cannot be read ({0}): is there a redrive server of this release behind the address?"
    )]
    Unreadable(String),
    /// The connection ended in the middle of a response.
    #[error("the response was cut off: {0}; try again")]
    CutOff(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
}

impl Error {
    /// The problem that the server answered with.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the same request may succeed later without any change.
    pub fn is_temporary(&self) -> bool {
        let status = match self {
            Error::Problem(problem) => problem.status,
            Error::Unexpected(status) => status.as_u16(),
            Error::Unreachable(_) | Error::CutOff(_) => return true,
            Error::Unreadable(_) => return false,
        };
        status >= 500 || status == StatusCode::TOO_MANY_REQUESTS
    }
}

/// A client of the HTTP API.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Arc<dyn Transport>,
}

impl Client {
    /// A client over this transport.
    pub fn new(transport: impl Transport + 'static) -> Self {
        Client { transport: Arc::new(transport) }
    }

    /// Sends `GET` and reads the response.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.ask(Method::GET, &with_query(path, query)?, Bytes::new()).await
    }

    /// Sends `GET` for one page of a list.
    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        filter: &impl Serialize,
        page: &PageQuery,
    ) -> Result<Page<T>> {
        let path = with_query(path, filter)?;
        let page = with_query("", page)?;
        let joint = if path.contains('?') { page.replacen('?', "&", 1) } else { page };
        self.ask(Method::GET, &format!("{path}{joint}"), Bytes::new()).await
    }

    /// Sends `POST` and reads the response.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T> {
        self.ask(Method::POST, path, json(body)?).await
    }

    /// Sends `POST` without a body and reads the response.
    pub(crate) async fn post_empty<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Method::POST, path, Bytes::new()).await
    }

    /// Sends `PUT` and reads the response.
    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.ask(Method::PUT, path, json(body)?).await
    }

    /// Sends `PATCH` and reads the response.
    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.ask(Method::PATCH, path, json(body)?).await
    }

    /// Sends `DELETE` and reads the response.
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.ask(Method::DELETE, &with_query(path, query)?, Bytes::new()).await
    }

    /// Sends `DELETE`, whose response has no body.
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, Bytes::new()).await.map(drop)
    }

    /// Sends `GET` and returns the raw body.
    pub(crate) async fn open(&self, path: &str, query: &impl Serialize) -> Result<Body> {
        self.call(Method::GET, &with_query(path, query)?, Bytes::new()).await.map(Response::into_body)
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T> {
        let response = self.call(method, path, body).await?;
        let bytes = whole(response).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Unreadable(error.to_string()))
    }

    /// Returns the response, unless it is a problem.
    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Body>> {
        let has_body = !body.is_empty();
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| Error::Unreachable(format!("{path:?} is no path")))?;
        if has_body {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let response = self.transport.call(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = whole(response).await.unwrap_or_default();
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(Error::Problem(Box::new(problem))),
            Err(_) => Err(Error::Unexpected(status)),
        }
    }
}

fn json(body: &(impl Serialize + ?Sized)) -> Result<Bytes> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Error::Unreadable(error.to_string()))
}

fn with_query(path: &str, query: &impl Serialize) -> Result<String> {
    let query = serde_urlencoded::to_string(query).map_err(|error| Error::Unreadable(error.to_string()))?;
    Ok(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
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
