//! A transport that answers from a script and remembers the requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use redrive_api::client::{Clock, Error, ResponseFuture, Transport};
use redrive_retry::Timestamp;
use serde_json::Value;

/// One answer of the script.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    NetworkError,
    /// No answer ever.
    Hang,
    Response {
        status: u16,
        headers: BTreeMap<String, String>,
        body: String,
    },
}

impl Answer {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Answer::Response { status, headers: BTreeMap::new(), body: body.to_string() }
    }
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Timestamp,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Sent {
    /// The query parameters of a request on this path.
    pub(crate) fn query(&self, path: &str) -> BTreeMap<String, String> {
        let (on, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        assert_eq!(on, path);
        serde_urlencoded::from_str(query).unwrap()
    }
}

/// Answers each request with the next entry; a request beyond the script is a failed test.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    clock: Clock,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Script {
    pub(crate) fn new(clock: Clock, answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect()));
        Script { clock, answers, sent: Arc::default() }
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }
}

impl Transport for Script {
    fn call(&self, request: Request<Bytes>) -> ResponseFuture<'_> {
        let (head, body) = request.into_parts();
        let (at, path) = (self.clock.now(), head.uri.to_string());
        self.sent.lock().unwrap().push(Sent { at, method: head.method, path, headers: head.headers, body });
        let answer = self.answers.lock().unwrap().pop_front().expect("no request beyond the script");
        Box::pin(async move {
            let (status, headers, body) = match answer {
                Answer::NetworkError => return Err(Error::Unreachable("connection refused".to_owned())),
                Answer::Hang => std::future::pending().await,
                Answer::Response { status, headers, body } => (status, headers, body),
            };
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            let body = Full::new(Bytes::from(body)).map_err(Into::into).boxed_unsync();
            Ok(response.body(body).unwrap())
        })
    }
}
