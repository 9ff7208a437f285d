//! Address of the RabbitMQ broker, connecting with backoff, and declaring the queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};
use url::{Host, Url};

use super::RabbitSettings;
use crate::error::SchedulerError;
use crate::reconnect::Reconnect;
use crate::retry_message::check_name;

/// Timeout of an attempt to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// URL parameter that names a file of certificate authorities.
const AUTHORITIES: &str = "cacertfile";

/// Purposes of connections; part of their names.
pub(super) const CONSUME: &str = "consume";
pub(super) const PUBLISH: &str = "publish";

/// A connection, the channel opened on it, and its number.
pub(super) struct Connected<T> {
    pub(super) connection: Arc<Connection>,
    pub(super) opened: T,
    pub(super) epoch: u64,
}

/// Connects to one broker.
pub(super) struct Broker {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    pub(super) settings: RabbitSettings,
    connects: AtomicU64,
    pub(super) reconnect: Reconnect,
}

impl Broker {
    pub(super) fn new(settings: RabbitSettings) -> Result<Self, SchedulerError> {
        // Error texts of the parser are not used: they may contain the password.
        let invalid = || SchedulerError::Address { why: "it is not a URL".to_owned() };
        let mut uri: AMQPUri = settings.url.trim().parse().map_err(|_: String| invalid())?;
        let url = Url::parse(settings.url.trim()).map_err(|_| invalid())?;
        match url.host() {
            // The client would connect to localhost instead.
            Some(Host::Ipv6(address)) => uri.authority.host = address.to_string(),
            Some(_) => {}
            None => return Err(SchedulerError::Address { why: "it names no host".to_owned() }),
        }
        // A trailing slash means the default vhost.
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        let heartbeat = u16::try_from(settings.heartbeat.as_secs()).unwrap_or(u16::MAX).max(1);
        uri.query.heartbeat.get_or_insert(heartbeat);
        let connect_ms = u64::try_from(CONNECT_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        uri.query.connection_timeout.get_or_insert(connect_ms);
        Ok(Broker {
            reconnect: Reconnect::new(without_password(&uri)),
            uri,
            tls: tls(&url)?,
            settings,
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

    /// Whether the scheduler declares this queue itself.
    pub(super) fn is_own(&self, queue: &str) -> bool {
        queue == self.settings.retry_queue || queue == self.settings.review_queue
    }

    /// Connects, declares the queues and opens a channel, repeating until it succeeds. The timeout covers all steps, because a dying
    /// broker may leave any of them unanswered.
    pub(super) async fn connect<T, F>(
        &self,
        purpose: &str,
        open: impl Fn(Arc<Connection>) -> F,
    ) -> Connected<T>
    where
        F: Future<Output = lapin::Result<T>>,
    {
        let mut attempt = 1;
        loop {
            let connecting = async {
                let connection = Arc::new(self.try_connect(purpose).await?);
                let opened = open(Arc::clone(&connection)).await?;
                lapin::Result::Ok((connection, opened))
            };
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok((connection, opened))) => {
                    let epoch = self.connects.fetch_add(1, Ordering::Relaxed) + 1;
                    tracing::info!(target: "redrive::scheduler", broker = self.address(), purpose, "connected");
                    return Connected { connection, opened, epoch };
                }
                Ok(Err(error)) => self.reconnect.log_and_wait(purpose, attempt, &error.to_string()).await,
                Err(_) => self.reconnect.log_and_wait(purpose, attempt, "timed out").await,
            }
            attempt += 1;
        }
    }

    async fn try_connect(&self, purpose: &str) -> lapin::Result<Connection> {
        let name = format!("{} {purpose}", self.settings.service_name);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = lapin::runtime::default_runtime()?;
        let connection =
            Connection::connect_uri_with_config(self.uri.clone(), properties, self.tls.clone(), runtime)
                .await?;
        for queue in [&self.settings.retry_queue, &self.settings.review_queue] {
            declare(&connection, queue).await?;
        }
        Ok(connection)
    }
}

/// Declares a queue. An existing queue with other arguments, or one that we may not declare, is used as it is.
pub(super) async fn declare(connection: &Connection, queue: &str) -> lapin::Result<()> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    match declare_with(connection, queue, options).await {
        Err(error) if is_soft(&error, &[AMQPSoftError::PRECONDITIONFAILED, AMQPSoftError::ACCESSREFUSED]) => {
            declare_with(connection, queue, QueueDeclareOptions { passive: true, ..options }).await
        }
        declared => declared,
    }
}

/// Declares a queue on a channel of its own, which a refusal closes.
async fn declare_with(
    connection: &Connection,
    queue: &str,
    options: QueueDeclareOptions,
) -> lapin::Result<()> {
    let channel = connection.create_channel().await?;
    channel.queue_declare(short(queue), options, FieldTable::default()).await?;
    let _ = channel.close(200, "declared".into()).await;
    Ok(())
}

/// Whether the broker closed a channel for one of these reasons.
pub(super) fn is_soft(error: &lapin::Error, kinds: &[AMQPSoftError]) -> bool {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(kind) => kinds.contains(kind),
            AMQPErrorKind::Hard(_) => false,
        },
        _ => false,
    }
}

/// Converts a name that was checked for its length.
pub(super) fn short(name: &str) -> ShortString {
    debug_assert!(name.is_empty() || check_name("name", name).is_ok());
    ShortString::try_new(name).unwrap_or_default()
}

/// Additional certificate authorities: `?cacertfile=PATH`, as in RabbitMQ's own clients.
fn tls(url: &Url) -> Result<OwnedTLSConfig, SchedulerError> {
    let Some((_, path)) = url.query_pairs().find(|(name, _)| name == AUTHORITIES) else {
        return Ok(OwnedTLSConfig::default());
    };
    let authorities = std::fs::read_to_string(path.as_ref())
        .map_err(|error| SchedulerError::Address { why: format!("{AUTHORITIES}={path}: {error}") })?;
    Ok(OwnedTLSConfig { identity: None, cert_chain: Some(authorities) })
}

fn without_password(uri: &AMQPUri) -> String {
    let scheme = match uri.scheme {
        AMQPScheme::AMQP => "amqp",
        AMQPScheme::AMQPS => "amqps",
    };
    let vhost = if uri.vhost == "/" { "" } else { &uri.vhost };
    let separator = if vhost.is_empty() { "" } else { "/" };
    let host = if uri.authority.host.contains(':') {
        format!("[{}]", uri.authority.host)
    } else {
        uri.authority.host.clone()
    };
    format!("{scheme}://{}@{host}:{}{separator}{vhost}", uri.authority.userinfo.username, uri.authority.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn broker(url: &str) -> Result<Broker, SchedulerError> {
        Broker::new(RabbitSettings::new(url, &Settings::default()))
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("amqp://localhost:5672", "amqp://guest@localhost:5672"),
            ("amqp://anna:s3cret@host/shop", "amqp://anna@host:5672/shop"),
            ("amqps://anna:s3%40cret@host:7/%2f?heartbeat=5", "amqps://anna@host:7"),
            ("amqp://anna:s3cret@[2001:db8::1]:7/", "amqp://anna@[2001:db8::1]:7"),
            ("amqp://anna:s3cret@10.0.0.1", "amqp://anna@10.0.0.1:5672"),
        ] {
            assert_eq!(broker(url).unwrap().address(), shown);
        }
        for bad in [
            "",
            "localhost",
            "http://anna:s3cret@host",
            "amqp://anna:s3cret@host:99999",
            "amqp://a:s3cret@host?heartbeat=s3cret",
        ] {
            let error = broker(bad).err().unwrap().to_string();
            assert!(
                error.contains("amqp://user:password@host") && !error.contains("s3cret"),
                "{bad}: {error}"
            );
        }
        let error = broker("amqps://anna:s3cret@host?cacertfile=/nowhere/ca.pem").err().unwrap();
        assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
        let settings = RabbitSettings::new("amqp://anna:s3cret@host", &Settings::default());
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
