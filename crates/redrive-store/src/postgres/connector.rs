//! Connects to the server, with TLS, durability checks and backoff.
//!
//! While the server is unreachable, all callers share one reconnect loop with exponential backoff and jitter, so that they do
//! not storm the server when it comes back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Config, NoTls, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::names::Names;
use super::session::{Session, Signals};
use super::{Durability, PostgresOptions, checks, failure};
use crate::error::StoreError;

const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The connect timeout of one host, unless the address sets another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason in the error where no attempt has reported one.
const NO_CONNECTIONS: &str = "it has accepted no connections for some time";

/// The purpose of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The frequent statements: append, claim, settle. Their plans use indexes even if they were prepared on an empty table.
    Work,
    /// Everything else.
    Other,
}

/// Makes connections to the server.
pub(super) struct Connector {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    pub(super) names: Arc<Names>,
    poll_only: bool,
    durability: Durability,
    settings: String,
    answer_timeout: Option<Duration>,
    backoff: tokio::sync::Mutex<Backoff>,
    /// Whether a connection has ended unexpectedly, so that an answer may have been lost.
    pub(super) has_lost: Arc<AtomicBool>,
}

/// The shared backoff between connection attempts.
#[derive(Debug, Default)]
struct Backoff {
    delay: Option<Duration>,
    not_before: Option<Instant>,
    /// The error of the last attempt.
    why: Option<String>,
}

impl Backoff {
    fn wait_longer(&mut self) {
        self.delay = Some(
            self.delay.map_or(FIRST_RETRY_DELAY, |before| before.saturating_mul(2).min(MAX_RETRY_DELAY)),
        );
        self.wait_from_now();
    }

    fn wait_from_now(&mut self) -> Instant {
        *self.not_before.insert(Instant::now() + jitter(self.delay.unwrap_or(FIRST_RETRY_DELAY)))
    }
}

impl Connector {
    /// Makes a connector and its first connection. Fails at once if the server is unreachable or can lose commits.
    pub(super) async fn open(
        mut config: Config,
        options: &PostgresOptions,
        settings: String,
        answer_timeout: Option<Duration>,
    ) -> Result<(Self, Session), StoreError> {
        let names = Arc::new(Names::new(&options.schema)?);
        if config.get_application_name().is_none() {
            config.application_name("redrive");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // Notices a server that vanished within seconds; the system's defaults take a quarter of an hour.
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(3));
        config.keepalives_retries(3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        let has_tls = config.get_ssl_mode() != SslMode::Disable;
        let connector = Connector {
            config,
            tls: if has_tls { Some(tls(options.ca_certificate.as_deref())?) } else { None },
            names,
            poll_only: options.poll_only,
            durability: options.durability,
            settings,
            answer_timeout,
            backoff: tokio::sync::Mutex::default(),
            has_lost: Arc::default(),
        };
        let session = connector.connect(Purpose::Other, Instant::now()).await?;
        checks::check(&session, options.durability).await?;
        Ok((connector, session))
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

    /// Connects. Retries transient errors until `deadline`.
    pub(super) async fn connect(&self, purpose: Purpose, deadline: Instant) -> Result<Session, StoreError> {
        self.connect_with(purpose, deadline, |_| {}).await
    }

    /// Connects like [`connect`](Self::connect), with a callback for notifications.
    pub(super) async fn connect_with(
        &self,
        purpose: Purpose,
        deadline: Instant,
        on_notification: impl Fn(Notification) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        loop {
            // The caller with the lock may wait for a silent server, so the deadline holds for the lock, too.
            let Ok(mut backoff) = tokio::time::timeout_at(deadline.into(), self.backoff.lock()).await else {
                return Err(self.unreachable(NO_CONNECTIONS.to_owned()));
            };
            if let Some(not_before) = backoff.not_before {
                if not_before > deadline {
                    let why = backoff.why.clone().unwrap_or_else(|| NO_CONNECTIONS.to_owned());
                    return Err(self.unreachable(why));
                }
                tokio::time::sleep_until(not_before.into()).await;
            }
            // Before the attempt: a caller that is cancelled during it has loaded the server, too.
            backoff.wait_longer();
            match self.attempt(purpose, on_notification.clone()).await {
                Ok(session) => {
                    *backoff = Backoff::default();
                    return Ok(session);
                }
                Err(error) => {
                    let not_before = backoff.wait_from_now();
                    tracing::warn!(target: "redrive::store", %error, "a connection attempt failed");
                    backoff.why = Some(match &error {
                        StoreError::Unreachable { why, .. } => why.clone(),
                        other => other.to_string(),
                    });
                    let is_retryable = matches!(error, StoreError::Unreachable { .. });
                    if !is_retryable || not_before > deadline {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Connects once, with a timeout for a server that accepts the connection and then stays silent: other callers wait for this one.
    async fn attempt(
        &self,
        purpose: Purpose,
        on_notification: impl Fn(Notification) + Send + 'static,
    ) -> Result<Session, StoreError> {
        let hosts = u32::try_from(self.config.get_hosts().len()).unwrap_or(1).max(1);
        let longest = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT) * 2 * hosts;
        let made = async {
            let session =
                self.open_connection(purpose, on_notification).await.map_err(|error| self.explain(error))?;
            if self.durability == Durability::Full {
                checks::make_durable(&session, self.poll_only).await?;
            }
            Ok(session)
        };
        match tokio::time::timeout(longest, made).await {
            Ok(Err(StoreError::Lost { why })) => Err(self.unreachable(why)), // retryable
            Ok(made) => made,
            Err(_) => Err(self.unreachable(format!("it has not answered for {longest:?}"))),
        }
    }

    /// Opens one connection, without checks and without a timeout.
    async fn open_connection(
        &self,
        purpose: Purpose,
        on_notification: impl Fn(Notification) + Send + 'static,
    ) -> Result<Session, tokio_postgres::Error> {
        let mut config = self.config.clone();
        if !self.poll_only {
            // Startup options take no round trip and hold for the whole session. A pooler would reject them.
            let plans = if purpose == Purpose::Work { " -c enable_seqscan=off" } else { "" };
            let own = config.get_options().unwrap_or_default();
            config.options(format!("{}{plans} {own}", self.settings));
        }
        let signals = Arc::<Signals>::default();
        // The arms differ only in the type of the connection.
        let client = match &self.tls {
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                self.drive(connection, Arc::clone(&signals), on_notification);
                client
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                self.drive(connection, Arc::clone(&signals), on_notification);
                client
            }
        };
        Ok(Session::new(client, Arc::clone(&self.names), self.poll_only, signals, self.answer_timeout))
    }

    /// Spawns the task that drives a connection until it ends.
    fn drive<S, T>(
        &self,
        mut connection: tokio_postgres::Connection<S, T>,
        signals: Arc<Signals>,
        on_notification: impl Fn(Notification) + Send + 'static,
    ) where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let has_lost = Arc::clone(&self.has_lost);
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = std::future::poll_fn(|cx| connection.poll_message(cx)) => message,
                    () = signals.hang_up.notified() => {
                        has_lost.store(true, Ordering::Release);
                        tracing::warn!(target: "redrive::store", "the server did not answer in time: the connection is closed");
                        return;
                    }
                };
                match message {
                    Some(Ok(AsyncMessage::Notification(notification))) => on_notification(notification),
                    // The server sends a warning before the answer to its statement.
                    Some(Ok(AsyncMessage::Notice(notice))) if *notice.code() == SqlState::WARNING => {
                        tracing::warn!(target: "redrive::store", why = notice.message(), "the server sent a warning");
                        signals.warnings.fetch_add(1, Ordering::AcqRel);
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        has_lost.store(true, Ordering::Release);
                        let why = failure::full_message(&error);
                        tracing::warn!(target: "redrive::store", why, "a connection was lost");
                        return;
                    }
                    None => return, // closed by this process
                }
            }
        });
    }

    fn unreachable(&self, why: String) -> StoreError {
        StoreError::Unreachable { server: self.server(), why }
    }

    fn explain(&self, error: tokio_postgres::Error) -> StoreError {
        let (server, why) = (self.server(), failure::full_message(&error));
        let user = self.config.get_user().unwrap_or("the user of this process").to_owned();
        match error.code() {
            None if why.contains("password missing") => StoreError::Login { server, user, why },
            None if failure::is_about_trust(&error) => StoreError::Untrusted { server, why },
            // Includes other TLS errors, whose messages explain themselves: a server that is starting may cause one.
            None => StoreError::Unreachable { server, why },
            Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                StoreError::Login { server, user, why }
            }
            Some(&SqlState::INVALID_CATALOG_NAME) => StoreError::NoSuchDatabase { server, why },
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => StoreError::Forbidden { why },
            Some(code) => match failure::classify(&error) {
                failure::ErrorClass::ConnectionLost => StoreError::Unreachable { server, why },
                _ if *code == SqlState::TOO_MANY_CONNECTIONS => StoreError::Unreachable { server, why },
                _ => StoreError::Server { why, source: error },
            },
        }
    }
}

/// A random delay between half of `delay` and all of it.
fn jitter(delay: Duration) -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() & 0xFFFF).unwrap_or(0);
    delay / 2 + (delay / 2).saturating_mul(random) / 0xFFFF
}

/// TLS that trusts the given certificate authority, or else the machine's authorities.
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
        // Certificates that cannot be parsed are skipped.
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
