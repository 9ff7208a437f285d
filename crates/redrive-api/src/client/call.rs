//! One request of a typed method, and whether it may be repeated.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use serde::Serialize;

use super::error::Error;
use super::repeat::Repeat;
use crate::page::PageQuery;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// One request: sent again, it has the same bytes.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Bytes,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The errors after which it may be repeated.
    pub(super) repeat: Repeat,
    /// Time that the server may take on purpose, beyond the time limit of an attempt.
    pub(super) server_wait: Duration,
}

impl Call {
    fn new(method: Method, path: &str, body: Bytes, repeat: Repeat) -> Self {
        let (path, headers, server_wait) = (path.to_owned(), Vec::new(), Duration::ZERO);
        Call { method, path, body, headers, repeat, server_wait }
    }

    pub(super) fn get(path: &str, query: &impl Serialize) -> Result<Self, Error> {
        Ok(Call::new(Method::GET, &with_query(path, query)?, Bytes::new(), Repeat::Always))
    }

    pub(super) fn page(path: &str, filter: &impl Serialize, page: &PageQuery) -> Result<Self, Error> {
        Call::get(path, filter)?.of_page(page)
    }

    pub(crate) fn post(path: &str, body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        Ok(Call::new(Method::POST, path, json(body)?, Repeat::IfRefused))
    }

    pub(crate) fn post_empty(path: &str) -> Self {
        Call::new(Method::POST, path, Bytes::new(), Repeat::IfRefused)
    }

    pub(super) fn put(path: &str, body: &impl Serialize) -> Result<Self, Error> {
        Ok(Call::new(Method::PUT, path, json(body)?, Repeat::Always))
    }

    pub(crate) fn patch(path: &str, body: &impl Serialize) -> Result<Self, Error> {
        Ok(Call::new(Method::PATCH, path, json(body)?, Repeat::IfRefused))
    }

    pub(super) fn delete(path: &str, query: &impl Serialize) -> Result<Self, Error> {
        Ok(Call::new(Method::DELETE, &with_query(path, query)?, Bytes::new(), Repeat::Always))
    }

    /// Sets when it may be repeated.
    pub(crate) fn repeat(self, repeat: Repeat) -> Self {
        Call { repeat, ..self }
    }

    /// Sets the time that the server may take on purpose.
    pub(crate) fn server_wait(self, wait: Duration) -> Self {
        Call { server_wait: wait, ..self }
    }

    /// Sets the key by which the server knows a repetition; then every error may be repeated.
    pub(crate) fn idempotency_key(self, key: Option<&str>) -> Result<Self, Error> {
        let repeat = if key.is_some() { Repeat::Always } else { self.repeat };
        Ok(self.header(IDEMPOTENCY_KEY, key)?.repeat(repeat))
    }

    /// Sets the trace context of published events.
    pub(crate) fn traceparent(self, context: Option<&str>) -> Result<Self, Error> {
        self.header(TRACEPARENT, context)
    }

    fn header(mut self, name: HeaderName, value: Option<&str>) -> Result<Self, Error> {
        if let Some(value) = value {
            let invalid = |_| Error::Invalid(format!("{value:?} cannot be the value of the header {name}"));
            let value = HeaderValue::from_str(value).map_err(invalid)?;
            self.headers.push((name, value));
        }
        Ok(self)
    }

    /// Selects a page of a list.
    pub(super) fn of_page(&self, page: &PageQuery) -> Result<Self, Error> {
        let query = with_query("", page)?;
        let joint = if self.path.contains('?') { query.replacen('?', "&", 1) } else { query };
        Ok(Call { path: format!("{}{joint}", self.path), ..self.clone() })
    }

    /// Builds the HTTP request.
    pub(super) fn request(&self) -> Result<Request<Bytes>, Error> {
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() =
            self.path.parse().map_err(|_| Error::Invalid(format!("{:?} is no path", self.path)))?;
        if !self.body.is_empty() {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        request.headers_mut().extend(self.headers.iter().cloned());
        Ok(request)
    }
}

fn json(body: &(impl Serialize + ?Sized)) -> Result<Bytes, Error> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Error::Invalid(error.to_string()))
}

fn with_query(path: &str, query: &impl Serialize) -> Result<String, Error> {
    let query = serde_urlencoded::to_string(query).map_err(|error| Error::Invalid(error.to_string()))?;
    Ok(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
}
