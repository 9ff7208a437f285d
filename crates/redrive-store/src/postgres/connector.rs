//! Making connections: to whom, how safely, and not all at once.
//!
//! While the server is away, whoever wants a connection stands in one line, and the pauses between two attempts grow and are
//! never the same: no storm when it comes back, and none while it is gone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::Notify;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Config, NoTls, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::names::Names;
use super::session::Session;
use super::{Durability, checks, failure};
use crate::error::StoreError;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a host has to take a connection, unless the address says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What is said where nobody knows more.
const NOBODY_IN: &str = "it has let nobody in for some time";

/// What a connection is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The few statements that are made all the time. They go by an index, however small the table was when they were
    /// prepared: a plan that was good for an empty table is not kept for a full one.
    Work,
    /// Everything else.
    Other,
}

/// How to reach the server. Shows neither the password nor anything else of the address but the host.
pub(super) struct Connector {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    names: Arc<Names>,
    poll_only: bool,
    durability: Durability,
    settings: String,
    longest_answer: Option<Duration>,
    line: tokio::sync::Mutex<Line>,
    /// A connection has ended by itself, so an answer may have been lost.
    pub(super) has_lost: Arc<AtomicBool>,
}

/// Who waits for a connection, waits here.
#[derive(Debug, Default)]
struct Line {
    pause: Option<Duration>,
    not_before: Option<Instant>,
    /// What the last attempt came to, if somebody has waited for it.
    why: Option<String>,
}

impl Line {
    fn wait_longer(&mut self) {
        self.pause =
            Some(self.pause.map_or(FIRST_PAUSE, |before| before.saturating_mul(2).min(LONGEST_PAUSE)));
        self.wait_from_now();
    }

    fn wait_from_now(&mut self) -> Instant {
        *self.not_before.insert(Instant::now() + jitter(self.pause.unwrap_or(FIRST_PAUSE)))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("server", &self.server()).finish_non_exhaustive()
    }
}

impl Connector {
    pub(super) fn new(
        mut config: Config,
        names: Arc<Names>,
        poll_only: bool,
        durability: Durability,
        settings: String,
        longest_answer: Option<Duration>,
        ca_certificate: Option<&std::path::Path>,
    ) -> Result<Self, StoreError> {
        if config.get_application_name().is_none() {
            config.application_name("redrive");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // A server that is gone without a word is noticed in seconds and not when the system gives up, after a quarter of an hour.
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(3));
        config.keepalives_retries(3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        let tls = if config.get_ssl_mode() == SslMode::Disable { None } else { Some(tls(ca_certificate)?) };
        Ok(Connector {
            config,
            tls,
            names,
            poll_only,
            durability,
            settings,
            longest_answer,
            line: tokio::sync::Mutex::default(),
            has_lost: Arc::default(),
        })
    }

    /// Host and port, for messages.
    pub(super) fn server(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => {
                self.config.get_hostaddrs().first().map_or_else(|| "localhost".into(), ToString::to_string)
            }
        };
        format!("{host}:{}", self.config.get_ports().first().copied().unwrap_or(5432))
    }

    /// Connects, and keeps trying until `deadline` as long as it may help.
    pub(super) async fn connect(&self, purpose: Purpose, deadline: Instant) -> Result<Session, StoreError> {
        self.connect_with(purpose, deadline, |_| {}).await
    }

    /// The same, with an ear for notifications.
    pub(super) async fn connect_with(
        &self,
        purpose: Purpose,
        deadline: Instant,
        heard: impl Fn(Notification) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        loop {
            // Not longer than for a server that is away: whoever is first in the line may wait for one that says nothing.
            let Ok(mut line) = tokio::time::timeout_at(deadline.into(), self.line.lock()).await else {
                return Err(StoreError::Unreachable { server: self.server(), why: NOBODY_IN.to_owned() });
            };
            if let Some(not_before) = line.not_before {
                if not_before > deadline {
                    let why = line.why.clone().unwrap_or_else(|| NOBODY_IN.to_owned());
                    return Err(StoreError::Unreachable { server: self.server(), why });
                }
                tokio::time::sleep_until(not_before.into()).await;
            }
            // Before it is made: who gives up in the middle of an attempt has tried, too, and the next one is to wait.
            line.wait_longer();
            match self.attempt(purpose, heard.clone()).await {
                Ok(session) => {
                    *line = Line::default();
                    return Ok(session);
                }
                Err(error) => {
                    let not_before = line.wait_from_now();
                    tracing::warn!(target: "redrive::store", %error, "no connection");
                    line.why = Some(match &error {
                        StoreError::Unreachable { why, .. } => why.clone(),
                        other => other.to_string(),
                    });
                    let may_pass = matches!(error, StoreError::Unreachable { .. });
                    if !may_pass || not_before > deadline {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A server that takes a connection and then says nothing is given up as one that takes none: the others wait.
    async fn attempt(
        &self,
        purpose: Purpose,
        heard: impl Fn(Notification) + Send + 'static,
    ) -> Result<Session, StoreError> {
        let hosts = u32::try_from(self.config.get_hosts().len()).unwrap_or(1).max(1);
        let longest = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT) * 2 * hosts;
        let made = async {
            let session = self.make(purpose, heard).await.map_err(|error| self.explain(error))?;
            if self.durability == Durability::Full {
                checks::make_durable(&session, self.poll_only).await?;
            }
            Ok(session)
        };
        let unreachable = |why: String| Err(StoreError::Unreachable { server: self.server(), why });
        match tokio::time::timeout(longest, made).await {
            Ok(Err(StoreError::Lost { why })) => unreachable(why), // again at once
            Ok(made) => made,
            Err(_) => unreachable(format!("it has said nothing for {longest:?}")),
        }
    }

    async fn make(
        &self,
        purpose: Purpose,
        heard: impl Fn(Notification) + Send + 'static,
    ) -> Result<Session, tokio_postgres::Error> {
        let mut config = self.config.clone();
        if !self.poll_only {
            // At the start of the connection: no round trip, and it holds for the whole session. A pooler would refuse it.
            let plans = if purpose == Purpose::Work { " -c enable_seqscan=off" } else { "" };
            let own = config.get_options().unwrap_or_default();
            config.options(format!("{}{plans} {own}", self.settings));
        }
        let hang_up = Arc::new(Notify::new());
        // Two arms that differ in their types only.
        let client = match &self.tls {
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                self.drive(connection, Arc::clone(&hang_up), heard);
                client
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                self.drive(connection, Arc::clone(&hang_up), heard);
                client
            }
        };
        Ok(Session::new(client, Arc::clone(&self.names), self.poll_only, hang_up, self.longest_answer))
    }

    /// Carries the messages of a connection until it ends.
    fn drive<S, T>(
        &self,
        mut connection: tokio_postgres::Connection<S, T>,
        hang_up: Arc<Notify>,
        heard: impl Fn(Notification) + Send + 'static,
    ) where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let has_lost = Arc::clone(&self.has_lost);
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = std::future::poll_fn(|cx| connection.poll_message(cx)) => message,
                    () = hang_up.notified() => {
                        has_lost.store(true, Ordering::Release);
                        tracing::warn!(target: "redrive::store", "the server has not answered for too long: the connection is given up");
                        return;
                    }
                };
                match message {
                    Some(Ok(AsyncMessage::Notification(notification))) => heard(notification),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        has_lost.store(true, Ordering::Release);
                        let why = failure::said(&error);
                        tracing::warn!(target: "redrive::store", why, "a connection was lost");
                        return;
                    }
                    None => return, // we have closed it ourselves
                }
            }
        });
    }

    fn explain(&self, error: tokio_postgres::Error) -> StoreError {
        let (server, why) = (self.server(), failure::said(&error));
        let user = self.config.get_user().unwrap_or("the user of this process").to_owned();
        match error.code() {
            None if why.contains("password missing") => StoreError::Login { server, user, why },
            None if failure::is_about_trust(&error) => StoreError::Untrusted { server, why },
            // Also what else goes wrong with TLS: it says so itself, and a server that is not ready yet may say nothing at all.
            None => StoreError::Unreachable { server, why },
            Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                StoreError::Login { server, user, why }
            }
            Some(&SqlState::INVALID_CATALOG_NAME) => StoreError::NoSuchDatabase { server, why },
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => StoreError::Forbidden { why },
            Some(code) => match failure::fate(&error) {
                failure::Fate::Lost => StoreError::Unreachable { server, why },
                _ if *code == SqlState::TOO_MANY_CONNECTIONS => StoreError::Unreachable { server, why },
                _ => StoreError::Server { why, source: error },
            },
        }
    }
}

/// Between a half and the whole of it.
fn jitter(pause: Duration) -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() & 0xFFFF).unwrap_or(0);
    pause / 2 + (pause / 2).saturating_mul(random) / 0xFFFF
}

/// Trusts whom the machine trusts, and whom it is told to.
fn tls(ca_certificate: Option<&std::path::Path>) -> Result<MakeRustlsConnect, StoreError> {
    let mut roots = rustls::RootCertStore::empty();
    match ca_certificate {
        Some(path) => {
            let unreadable = |error: &dyn fmt::Display| StoreError::Address {
                why: format!("the CA certificate {} cannot be read: {error}", path.display()),
            };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                roots.add(certificate).map_err(|error| unreadable(&error))?;
            }
        }
        // What of it cannot be read is not trusted; that is all.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Address { why: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
