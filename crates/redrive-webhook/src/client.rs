//! Sends messages.

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

use crate::attempt::{Answer, Attempt, Failed, MAX_BODY, Phase};
use crate::connect::{ConnectError, GuardedConnector, GuardedTcp, Resolve, system_resolver};
use crate::endpoint_url::EndpointUrl;
use crate::guard::Guard;
use crate::header::Header;
use crate::message::Message;
use crate::secret::Secrets;

/// So many connections to one host are kept for the next message, and for so long.
const KEPT_CONNECTIONS: usize = 64;
const KEPT_FOR: Duration = Duration::from_secs(30);

/// No answer has more headers, or longer ones.
const MAX_HEADERS: usize = 100;
const MAX_HEAD: usize = 64 * 1024;

/// Who we say that we are.
const AGENT: &str = concat!("Redrive/", env!("CARGO_PKG_VERSION"));

/// How long an attempt may take.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Until there is a connection, with TLS.
    pub connect: Duration,
    /// Until the answer begins. What connecting did not take of its time is added, because a kept connection needs none.
    pub first_byte: Duration,
    /// For everything.
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

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Sends messages over connections that are kept and used again. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: legacy::Client<GuardedConnector, Full<Bytes>>,
    tcp: GuardedTcp,
    deadlines: Deadlines,
}

/// How a client is made.
pub struct ClientBuilder {
    guard: Guard,
    deadlines: Deadlines,
    allows_plain: bool,
    resolve: Resolve,
    roots: Option<rustls::RootCertStore>,
    authorities: Vec<CertificateDer<'static>>,
}

impl Client {
    /// With the usual guard and deadlines, unless something else is said.
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

    /// Whether anything could be sent there now: for whoever makes an endpoint. It is looked at again at every connection.
    pub async fn check(&self, url: &EndpointUrl) -> Result<(), Failed> {
        let looked_up = timeout(self.deadlines.connect, self.tcp.addresses(url.host(), url.port())).await;
        let limit = self.deadlines.connect;
        let addresses =
            looked_up.unwrap_or(Err(ConnectError::Timeout(limit))).map_err(|error| failed(&error))?;
        if url.is_plain() {
            self.tcp.check_plain(&addresses).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Sends a message once, within the client's deadlines or less, and says what came of it.
    pub async fn send(
        &self,
        url: &EndpointUrl,
        secrets: &Secrets,
        headers: &[Header],
        message: Message<'_>,
        longest: Option<Duration>,
    ) -> Attempt {
        let began = Instant::now();
        let until = began + longest.map_or(self.deadlines.total, |longest| longest.min(self.deadlines.total));
        let answered_by = until.min(began + self.deadlines.connect + self.deadlines.first_byte);
        let request = request(url, secrets, headers, message);
        let answered = timeout_at(answered_by, self.http.request(request)).await;
        let latency = began.elapsed();
        let failed = |failed: Failed| Attempt { latency, answer: None, failed: Some(failed) };
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return failed(why(&error)),
            Err(_) => {
                let limit_ms = u64::try_from((answered_by - began).as_millis()).unwrap_or(u64::MAX);
                return failed(Failed::Timeout { waiting_for: Phase::Answer, limit_ms });
            }
        };
        let answer = read(response, until).await;
        let failed = answer.judge(Timestamp::from(std::time::SystemTime::now()));
        Attempt { latency, failed, answer: Some(answer) }
    }
}

impl ClientBuilder {
    /// Where nothing is sent.
    #[must_use]
    pub fn guard(self, guard: Guard) -> Self {
        ClientBuilder { guard, ..self }
    }

    /// How long an attempt may take.
    #[must_use]
    pub fn deadlines(self, deadlines: Deadlines) -> Self {
        ClientBuilder { deadlines, ..self }
    }

    /// Sends to public addresses also without TLS. Without this, only where a range was opened by hand.
    #[must_use]
    pub fn allow_plain(self) -> Self {
        ClientBuilder { allows_plain: true, ..self }
    }

    /// Finds addresses in another way than the system does.
    #[must_use]
    pub fn resolver<R, F>(self, resolver: R) -> Self
    where
        R: Fn(String, u16) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        let resolve: Resolve = Arc::new(move |name, port| Box::pin(resolver(name, port)));
        ClientBuilder { resolve, ..self }
    }

    /// Trusts these, and not whom the machine trusts.
    #[must_use]
    pub fn roots(self, roots: rustls::RootCertStore) -> Self {
        ClientBuilder { roots: Some(roots), ..self }
    }

    /// Trusts these authorities as well: those of a network of one's own.
    #[must_use]
    pub fn trust(self, authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        ClientBuilder { authorities: authorities.into_iter().collect(), ..self }
    }

    /// Makes it. Proxies that the environment names are not used: they would connect where the guard does not look.
    pub fn build(self) -> Result<Client, ClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = self.roots.unwrap_or_else(roots_of_the_machine);
        for authority in self.authorities {
            roots.add(authority)?;
        }
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let longest = self.deadlines.connect;
        let tcp = GuardedTcp {
            guard: Arc::new(self.guard),
            resolve: self.resolve,
            allows_plain: self.allows_plain,
            longest,
        };
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp.clone());
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEPT_FOR)
            .pool_max_idle_per_host(KEPT_CONNECTIONS)
            .http1_max_headers(MAX_HEADERS)
            .http1_max_buf_size(MAX_HEAD)
            .build(GuardedConnector { https, longest });
        Ok(Client { http, tcp, deadlines: self.deadlines })
    }
}

fn roots_of_the_machine() -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    // What of it cannot be read is not trusted; that is all.
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
        let value = HeaderValue::try_from(value).expect("an id, a number and base64 can be sent");
        all.insert(name, value);
    }
    request
}

/// Reads what is kept of an answer, and no more. What does not come in time is left out: the status has said what there is to say.
async fn read(response: Response<Incoming>, until: Instant) -> Answer {
    let (head, mut incoming) = response.into_parts();
    let (mut body, mut is_cut) = (Vec::new(), false);
    loop {
        match timeout_at(until, incoming.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => {
                let data = frame.into_data().unwrap_or_default();
                let room = MAX_BODY - body.len();
                body.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    is_cut = true;
                    break;
                }
            }
            Ok(Some(Err(_))) | Err(_) => {
                is_cut = true;
                break;
            }
        }
    }
    Answer::new(&head, body, is_cut)
}

/// What is behind an error of the client.
fn why(error: &legacy::Error) -> Failed {
    let sources = std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source());
    let of_connecting = sources.clone().find_map(|error| error.downcast_ref::<ConnectError>());
    if let Some(error) = of_connecting {
        return failed(error);
    }
    if let Some(error) = sources.clone().find_map(of_tls) {
        return Failed::Tls { why: error };
    }
    let why = sources.last().map_or_else(|| error.to_string(), ToString::to_string);
    if error.is_connect() { Failed::Connect { why } } else { Failed::Broken { why } }
}

/// TLS hides its errors inside those of the system.
fn of_tls(error: &(dyn Error + 'static)) -> Option<String> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = inner.and_then(|inner| {
        inner.downcast_ref::<rustls::Error>().map(ToString::to_string).or_else(|| of_tls(inner))
    });
    inner.or_else(|| error.downcast_ref::<rustls::Error>().map(ToString::to_string))
}

fn failed(error: &ConnectError) -> Failed {
    match error {
        ConnectError::Forbidden(_) | ConnectError::Plain(_) => Failed::Forbidden { why: error.to_string() },
        ConnectError::Resolve(error) => Failed::Resolve { why: error.to_string() },
        ConnectError::Refused(error) => Failed::Connect { why: error.to_string() },
        ConnectError::NoRoom(error) => Failed::NoRoom { why: error.to_string() },
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
