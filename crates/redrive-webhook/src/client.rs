//! HTTP client that sends one signed message per call and reports the attempt. It does not retry.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use redrive_retry::Timestamp;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};

use crate::attempt::{Attempt, Failed, MAX_BODY, Phase, WebhookResponse};
use crate::connect::{ConnectError, GuardedConnector, GuardedTcp, Resolve, system_resolver};
use crate::endpoint_url::EndpointUrl;
use crate::guard::Guard;
use crate::header::Header;
use crate::kept_connection::UnreadBytes;
use crate::secret::Secrets;

/// Idle connections kept per host, and for how long.
const MAX_IDLE_PER_HOST: usize = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits on the head of a response.
const MAX_RESPONSE_HEADERS: usize = 100;
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Value of the `User-Agent` header.
const AGENT: &str = concat!("Redrive/", env!("CARGO_PKG_VERSION"));

/// Time limits of an attempt.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Limit for name resolution, TCP and TLS together.
    pub connect: Duration,
    /// Limit for the response head, counted after `connect`: time that connecting did not use is added.
    pub first_byte: Duration,
    /// Limit for the whole attempt, body included.
    pub total: Duration,
}

impl Default for Deadlines {
    /// 5 s, 15 s, 20 s.
    fn default() -> Self {
        Deadlines {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(15),
            total: Duration::from_secs(20),
        }
    }
}

/// Content of one webhook request. Its id is the same at every attempt, so the receiver can detect duplicates.
#[derive(Copy, Clone, Debug)]
pub struct Message<'a> {
    /// Value of the `webhook-id` header.
    pub id: &'a str,
    /// Time of this attempt in seconds since 1970 (not of the event, because receivers refuse old timestamps).
    pub timestamp: i64,
    /// The signed body.
    pub body: &'a [u8],
}

/// The client could not be built.
#[derive(Debug, Error)]
pub enum ClientError {
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Sends messages over a connection pool. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: legacy::Client<GuardedConnector, Full<Bytes>>,
    tcp: GuardedTcp,
    deadlines: Deadlines,
}

/// Builds a [`Client`].
pub struct ClientBuilder {
    guard: Guard,
    deadlines: Deadlines,
    allows_plain: bool,
    resolve: Resolve,
    roots: Option<rustls::RootCertStore>,
    authorities: Vec<CertificateDer<'static>>,
}

impl Client {
    /// A builder with the default guard and deadlines.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            guard: Guard::default(),
            deadlines: Deadlines::default(),
            allows_plain: false,
            resolve: system_resolver(),
            roots: None,
            authorities: Vec::new(),
        }
    }

    /// Checks that the URL resolves and that the guard allows its addresses. Every connection checks again.
    pub async fn check(&self, url: &EndpointUrl) -> Result<(), Failed> {
        let limit = self.deadlines.connect;
        let checked = timeout(limit, self.tcp.addresses(url.host(), url.port(), url.is_plain())).await;
        checked.unwrap_or(Err(ConnectError::Timeout(limit))).map(drop).map_err(|error| failed(&error))
    }

    /// Sends a message once, within the client's deadlines or `timeout` if that is shorter, and reports the attempt.
    pub async fn send(
        &self,
        url: &EndpointUrl,
        secrets: &Secrets,
        headers: &[Header],
        message: Message<'_>,
        timeout: Option<Duration>,
    ) -> Attempt {
        let began = Instant::now();
        let until = began + timeout.map_or(self.deadlines.total, |timeout| timeout.min(self.deadlines.total));
        let answered_by = until.min(began + self.deadlines.connect + self.deadlines.first_byte);
        let answered = timeout_at(answered_by, self.request(url, secrets, headers, message)).await;
        let latency = began.elapsed();
        let failed = |failed: Failed| Attempt { latency, response: None, failed: Some(failed) };
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return failed(failure_of(&error)),
            Err(_) => {
                let limit_ms = u64::try_from((answered_by - began).as_millis()).unwrap_or(u64::MAX);
                return failed(Failed::Timeout { waiting_for: Phase::Response, limit_ms });
            }
        };
        let response = read(response, until).await;
        let failed = response.failure(Timestamp::from(std::time::SystemTime::now()));
        Attempt { latency, failed, response: Some(response) }
    }

    /// Sends the request, on another connection whenever a kept one has unread bytes.
    async fn request(
        &self,
        url: &EndpointUrl,
        secrets: &Secrets,
        headers: &[Header],
        message: Message<'_>,
    ) -> Result<Response<Incoming>, legacy::Error> {
        loop {
            let answered = self.http.request(request(url, secrets, headers, message)).await;
            match answered {
                // Each round closes a kept connection, and new ones never fail this way.
                Err(error) if sources(&error).any(is_unread_bytes) => {}
                answered => return answered,
            }
        }
    }
}

impl ClientBuilder {
    /// Sets the guard that decides which addresses are allowed.
    #[must_use]
    pub fn guard(self, guard: Guard) -> Self {
        ClientBuilder { guard, ..self }
    }

    /// Sets the time limits of an attempt.
    #[must_use]
    pub fn deadlines(self, deadlines: Deadlines) -> Self {
        ClientBuilder { deadlines, ..self }
    }

    /// Allows plain HTTP to public addresses. By default only ranges allowed by the guard's exceptions accept plain HTTP.
    #[must_use]
    pub fn allow_plain(self) -> Self {
        ClientBuilder { allows_plain: true, ..self }
    }

    /// Replaces the system's name resolution.
    #[must_use]
    pub fn resolver<R, F>(self, resolver: R) -> Self
    where
        R: Fn(String, u16) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        let resolve: Resolve = Arc::new(move |name, port| Box::pin(resolver(name, port)));
        ClientBuilder { resolve, ..self }
    }

    /// Trusts these root certificates instead of the machine's.
    #[must_use]
    pub fn roots(self, roots: rustls::RootCertStore) -> Self {
        ClientBuilder { roots: Some(roots), ..self }
    }

    /// Trusts these certificate authorities in addition, such as those of a private network.
    #[must_use]
    pub fn trust(self, authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        ClientBuilder { authorities: authorities.into_iter().collect(), ..self }
    }

    /// Builds the client. Proxy variables of the environment are ignored: a proxy would bypass the guard.
    pub fn build(self) -> Result<Client, ClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = self.roots.unwrap_or_else(native_roots);
        for authority in self.authorities {
            roots.add(authority)?;
        }
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let timeout = self.deadlines.connect;
        let tcp = GuardedTcp {
            guard: Arc::new(self.guard),
            resolve: self.resolve,
            allows_plain: self.allows_plain,
            timeout,
        };
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp.clone());
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
            .http1_max_headers(MAX_RESPONSE_HEADERS)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .build(GuardedConnector { https, timeout });
        Ok(Client { http, tcp, deadlines: self.deadlines })
    }
}

fn native_roots() -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    // Unreadable certificates are skipped.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn request(
    url: &EndpointUrl,
    secrets: &Secrets,
    headers: &[Header],
    Message { id, timestamp, body }: Message<'_>,
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::copy_from_slice(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.uri().clone();
    let all = request.headers_mut();
    all.extend(headers.iter().map(Header::parts));
    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    all.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    let signature = secrets.sign(id, timestamp, body);
    let signed = [
        ("webhook-id", id),
        ("webhook-timestamp", &timestamp.to_string()),
        ("webhook-signature", &signature),
    ];
    for (name, value) in signed {
        let value =
            HeaderValue::try_from(value).expect("an event id, a number and base64 are valid header values");
        all.insert(name, value);
    }
    request
}

/// Reads at most [`MAX_BODY`] bytes of the body, until the deadline. The status decides the outcome, so a truncated body is no error.
async fn read(response: Response<Incoming>, until: Instant) -> WebhookResponse {
    let (head, mut incoming) = response.into_parts();
    let (mut body, mut is_cut) = (Vec::new(), false);
    while !is_cut {
        match timeout_at(until, incoming.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => {
                let data = frame.into_data().unwrap_or_default();
                let left = MAX_BODY - body.len();
                body.extend_from_slice(&data[..data.len().min(left)]);
                is_cut = data.len() > left;
            }
            Ok(Some(Err(_))) | Err(_) => is_cut = true,
        }
    }
    WebhookResponse::new(&head, body, is_cut)
}

/// Finds the root cause of an HTTP client error.
fn failure_of(error: &legacy::Error) -> Failed {
    let sources = sources(error);
    let connect_error = sources.clone().find_map(|error| error.downcast_ref::<ConnectError>());
    if let Some(error) = connect_error {
        return failed(error);
    }
    if let Some(error) = sources.clone().find_map(tls_error) {
        return Failed::Tls { why: error };
    }
    let why = sources.last().map_or_else(|| error.to_string(), ToString::to_string);
    if error.is_connect() { Failed::Connect { why } } else { Failed::Broken { why } }
}

fn sources(error: &legacy::Error) -> impl Iterator<Item = &(dyn Error + 'static)> + Clone {
    std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source())
}

fn is_unread_bytes(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.is_some_and(|inner| inner.is::<UnreadBytes>())
}

/// Finds a TLS error nested inside an I/O error.
fn tls_error(error: &(dyn Error + 'static)) -> Option<String> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = inner.and_then(|inner| {
        inner.downcast_ref::<rustls::Error>().map(ToString::to_string).or_else(|| tls_error(inner))
    });
    inner.or_else(|| error.downcast_ref::<rustls::Error>().map(ToString::to_string))
}

fn failed(error: &ConnectError) -> Failed {
    match error {
        ConnectError::Forbidden(_) | ConnectError::Plain(_) => Failed::Forbidden { why: error.to_string() },
        ConnectError::Resolve(error) => Failed::Resolve { why: error.to_string() },
        ConnectError::Refused(error) => Failed::Connect { why: error.to_string() },
        ConnectError::LocalResources(error) => Failed::LocalResources { why: error.to_string() },
        ConnectError::Timeout(limit) => Failed::Timeout {
            waiting_for: Phase::Connection,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        },
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("deadlines", &self.deadlines).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("deadlines", &self.deadlines).finish_non_exhaustive()
    }
}
