//! Address and credentials of the NATS server, and the state of the connection.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;

use super::NatsSettings;
use crate::error::SchedulerError;
use crate::reconnect::Reconnect;

/// Timeout of an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of a request to the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Purpose in the backoff's jitter.
const PURPOSE: &str = "nats";

/// A NATS server or cluster, and the connection to it.
pub(super) struct Server {
    addresses: Vec<ServerAddr>,
    sign_in: SignIn,
    pub(super) settings: NatsSettings,
    link: watch::Sender<Link>,
    connects: AtomicU64,
    reconnect: Reconnect,
}

/// State of the connection.
#[derive(Clone, Debug, Default)]
struct Link {
    /// Set by the first connection; the client reconnects by itself.
    connection: Option<Handles>,
    is_up: bool,
    /// Number of the current or last connection.
    epoch: u64,
    is_closed: bool,
}

/// Client handles of the connection.
#[derive(Clone, Debug)]
pub(super) struct Handles {
    pub(super) client: Client,
    /// For requests to the JetStream API.
    pub(super) context: Context,
    /// For publishing, with its own timeout.
    pub(super) publishing: Context,
}

/// Credentials.
enum SignIn {
    Nothing,
    Password(String, String),
    Token(String),
    #[cfg(feature = "nkeys")]
    Credentials(String),
}

/// A connection that is up, and its number.
#[derive(Clone, Debug)]
pub(super) struct Up {
    pub(super) connection: Handles,
    pub(super) epoch: u64,
}

impl Server {
    pub(super) fn new(settings: NatsSettings) -> Result<Self, SchedulerError> {
        // Error texts of the parser are not used: they may contain the password.
        let invalid = |why: &str| SchedulerError::NatsAddress { why: why.to_owned() };
        let mut addresses = Vec::new();
        let mut sign_in = SignIn::Nothing;
        for text in settings.url.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let address: ServerAddr = text.parse().map_err(|_| invalid("it is not a URL"))?;
            if address.host().is_empty() {
                return Err(invalid("it names no host"));
            }
            if address.is_websocket() {
                return Err(invalid("web sockets are not supported"));
            }
            let mut url = address.into_inner();
            if matches!(sign_in, SignIn::Nothing) {
                sign_in = SignIn::of(url.username(), url.password())
                    .ok_or_else(|| invalid("user or password is not UTF-8"))?;
            }
            // The client logs addresses unchanged. Neither call fails for a URL with a host.
            let _ = (url.set_username(""), url.set_password(None));
            addresses.push(ServerAddr::from_url(url).map_err(|_| invalid("it is not a URL"))?);
        }
        if addresses.is_empty() {
            return Err(invalid("it is empty"));
        }
        if let Some(path) = &settings.credentials_file {
            sign_in = credentials(path)?;
        }
        Ok(Server {
            reconnect: Reconnect::new(without_secrets(&addresses, &sign_in)),
            addresses,
            sign_in,
            settings,
            link: watch::Sender::default(),
            connects: AtomicU64::new(0),
        })
    }

    /// The address without the password.
    pub(super) fn address(&self) -> &str {
        self.reconnect.address()
    }

    pub(super) fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    pub(super) fn is_up(&self) -> bool {
        self.link.borrow().is_up
    }

    pub(super) fn wait(&self, attempt: u32) -> Duration {
        self.reconnect.wait(PURPOSE, attempt)
    }

    /// Connects, repeating until it succeeds. After that the client reconnects by itself.
    pub(super) async fn connect(self: Arc<Self>) {
        let mut attempt = 1;
        let client = loop {
            match self.try_connect().await {
                Ok(client) => break client,
                Err(error) => self.reconnect.log_and_wait(PURPOSE, attempt, &error).await,
            }
            attempt += 1;
        };
        let build = |timeout| ContextBuilder::new().timeout(timeout).build(client.clone());
        let connection = Handles {
            context: build(REQUEST_TIMEOUT),
            publishing: build(self.settings.confirm_timeout),
            client: client.clone(),
        };
        self.link.send_modify(|link| link.connection = Some(connection));
    }

    async fn try_connect(self: &Arc<Self>) -> Result<Client, String> {
        self.options()?.connect(&self.addresses[..]).await.map_err(|error| error.to_string())
    }

    fn options(self: &Arc<Self>) -> Result<ConnectOptions, String> {
        let options = match &self.sign_in {
            SignIn::Nothing => ConnectOptions::new(),
            SignIn::Password(user, password) => {
                ConnectOptions::with_user_and_password(user.clone(), password.clone())
            }
            SignIn::Token(token) => ConnectOptions::with_token(token.clone()),
            #[cfg(feature = "nkeys")]
            SignIn::Credentials(text) => {
                // The error text may contain the credentials.
                ConnectOptions::with_credentials(text)
                    .map_err(|_| "the credentials file is invalid".to_owned())?
            }
        };
        let (for_events, for_delays) = (Arc::downgrade(self), Arc::downgrade(self));
        Ok(options
            .name(&self.settings.service_name)
            .connection_timeout(CONNECT_TIMEOUT)
            // Two missed pings mean that the server is gone.
            .ping_interval(Duration::from_secs(10))
            .max_reconnects(None)
            .reconnect_delay_callback(move |attempts| {
                let attempt = u32::try_from(attempts).unwrap_or(u32::MAX);
                for_delays.upgrade().map_or(CONNECT_TIMEOUT, |server| server.wait(attempt))
            })
            .event_callback(move |event| {
                if let Some(server) = for_events.upgrade() {
                    server.on_event(&event);
                }
                std::future::ready(())
            }))
    }

    fn on_event(&self, event: &Event) {
        let broker = self.address();
        match event {
            Event::Connected => {
                let epoch = self.connects.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::info!(target: "redrive::scheduler", broker, "connected");
                self.link.send_modify(|link| (link.is_up, link.epoch) = (true, epoch));
            }
            Event::Disconnected | Event::Closed => {
                tracing::warn!(target: "redrive::scheduler", broker, "the connection was lost");
                self.link.send_modify(|link| link.is_up = false);
            }
            // For example a permission violation.
            Event::ServerError(error) => {
                tracing::error!(target: "redrive::scheduler", broker, %error, "the broker reports an error");
            }
            Event::ClientError(error) => {
                tracing::warn!(target: "redrive::scheduler", broker, %error, "the broker cannot be reached");
            }
            Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {
                tracing::debug!(target: "redrive::scheduler", broker, %event, "connection event");
            }
        }
    }

    /// Waits for a connection. `None` once the transport is closed.
    pub(super) async fn up(&self) -> Option<Up> {
        let mut link = self.link.subscribe();
        let link =
            link.wait_for(|link| link.is_closed || (link.is_up && link.connection.is_some())).await.ok()?;
        if link.is_closed {
            return None;
        }
        Some(Up { connection: link.connection.clone()?, epoch: link.epoch })
    }

    /// Client handles, after the first connection.
    pub(super) fn connection(&self) -> Option<Handles> {
        self.link.borrow().connection.clone()
    }

    /// Waits until this connection has ended.
    pub(super) async fn lost(&self, epoch: u64) {
        let mut link = self.link.subscribe();
        let _ = link.wait_for(|link| link.is_closed || !link.is_up || link.epoch != epoch).await;
    }

    /// Ends all waits for a connection.
    pub(super) fn close(&self) {
        self.link.send_modify(|link| (link.is_closed, link.is_up) = (true, false));
    }
}

impl SignIn {
    /// Credentials of a URL: user and password, or a token alone. `None` if they are not UTF-8.
    fn of(user: &str, password: Option<&str>) -> Option<Self> {
        Some(match (percent_decode(user)?, password) {
            (user, None) if user.is_empty() => SignIn::Nothing,
            (token, None) => SignIn::Token(token),
            (user, Some(password)) => SignIn::Password(user, percent_decode(password)?),
        })
    }
}

/// Decodes percent-encoding.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(feature = "nkeys")]
fn credentials(path: &Path) -> Result<SignIn, SchedulerError> {
    let wrong = |why: String| SchedulerError::Credentials { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    ConnectOptions::with_credentials(&text)
        .map_err(|_| wrong("it does not contain credentials as written by `nsc`".to_owned()))?;
    Ok(SignIn::Credentials(text))
}

#[cfg(not(feature = "nkeys"))]
fn credentials(path: &Path) -> Result<SignIn, SchedulerError> {
    let why = "this program was built without the feature `nkeys`".to_owned();
    Err(SchedulerError::Credentials { path: path.to_owned(), why })
}

/// The address without password or token.
fn without_secrets(addresses: &[ServerAddr], sign_in: &SignIn) -> String {
    let user = match sign_in {
        SignIn::Password(user, _) => format!("{user}@"),
        _ => String::new(),
    };
    let one = |address: &ServerAddr| {
        let host = address.host();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("{}://{user}{host}:{}", address.scheme(), address.port())
    };
    addresses.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn server(url: &str) -> Result<Server, SchedulerError> {
        Server::new(NatsSettings::new(url, &Settings::default()))
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("localhost", "nats://localhost:4222"),
            ("nats://anna:s3cret@host", "nats://anna@host:4222"),
            ("tls://s3cret@host:7, nats://[::1]", "tls://host:7,nats://[::1]:4222"),
        ] {
            let server = server(url).unwrap();
            assert_eq!(server.address(), shown);
            assert!(!format!("{:?}", server.addresses).contains("s3cret"), "the client logs these");
        }
        for bad in
            ["", " , ", "http://anna:s3cret@host", "nats://", "nats://a:s3cret@h:99999", "ws://s3cret@h"]
        {
            let error = server(bad).err().unwrap().to_string();
            assert!(
                error.contains("nats://user:password@host") && !error.contains("s3cret"),
                "{bad}: {error}"
            );
        }
        let settings = NatsSettings::new("nats://anna:s3cret@host", &Settings::default());
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn credentials_are_read_from_the_url() {
        let sign_in = |url: &str| server(url).unwrap().sign_in;
        assert!(matches!(sign_in("nats://host"), SignIn::Nothing));
        assert!(matches!(sign_in("nats://t%40ken@host"), SignIn::Token(token) if token == "t@ken"));
        assert!(matches!(
            sign_in("nats://one,nats://anna:p%3Aw@two"),
            SignIn::Password(user, password) if (user.as_str(), password.as_str()) == ("anna", "p:w")
        ));
    }

    #[test]
    fn an_unreadable_credentials_file_is_refused() {
        let settings = NatsSettings {
            credentials_file: Some("/nowhere/user.creds".into()),
            ..NatsSettings::new("nats://host", &Settings::default())
        };
        let error = Server::new(settings).err().unwrap().to_string();
        assert!(error.contains("user.creds"), "{error}");
    }
}
