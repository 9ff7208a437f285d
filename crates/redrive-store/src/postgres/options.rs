//! Options of a PostgreSQL store.

use std::path::PathBuf;
use std::time::Duration;

use redrive_retry::Clock;

use super::Durability;
use crate::event::NewEvent;

/// Options of a PostgreSQL store. The defaults suit most programs.
///
/// ```
/// use redrive_store::PostgresOptions;
/// let options = PostgresOptions { schema: "billing".into(), write_connections: 2, ..PostgresOptions::default() };
/// assert_eq!(options.lease.as_secs(), 15);
/// ```
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The schema that holds all tables, unless the address names one.
    pub schema: String,
    /// Whether to create the schema if it does not exist. Commands that only read do not create one.
    pub create: bool,
    /// Whether the server refuses every change, for commands that only read. Without effect behind a transaction pooler.
    pub read_only: bool,
    /// The instance name of this process. A process that restarts under the same name on the same machine recovers its claims
    /// at once; other processes wait until the lease has expired. Default: the host name.
    pub instance: String,
    /// Time for which a process keeps its claims after its last heartbeat.
    pub lease: Duration,
    /// Number of connections for appends and settlements. A free connection sends all queued ones as one batch.
    pub write_connections: usize,
    /// Maximum size of the connection pool for everything else.
    pub pool: usize,
    /// Capacity of the queue of appends and settlements. A full queue makes callers wait (backpressure).
    pub queue: usize,
    /// Maximum size of a payload in bytes.
    pub max_payload: usize,
    /// When a change counts as stored. [`Durability::Full`] refuses a server whose settings can lose commits.
    pub durability: Durability,
    /// The server cancels a statement, and an idle transaction, after this time.
    pub statement_timeout: Duration,
    /// Time for which a call waits for an unreachable server before it fails.
    pub outage_timeout: Duration,
    /// Interval between polls for work that other processes have stored without a notification.
    pub poll_interval: Duration,
    /// For a transaction pooler (PgBouncer): no LISTEN, no session locks, no session settings, no prepared statements. The pooler must set
    /// the timeouts, and a restarted process waits for its own lease to expire. The address can set it, too: `?poll_only=true`.
    pub poll_only: bool,
    /// PEM file of the certificate authority that signs the server's certificate. The address can set it, too:
    /// `?sslrootcert=/etc/ca.pem`. Default: the machine's trusted authorities.
    pub ca_certificate: Option<PathBuf>,
    /// Gives the steady time that carries the database's time on. Virtual time stands still while the store works.
    pub clock: Clock,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions {
            schema: "redrive".into(),
            create: true,
            read_only: false,
            instance: gethostname::gethostname().to_string_lossy().into_owned(),
            lease: Duration::from_secs(15),
            write_connections: 4,
            pool: 8,
            queue: 4096,
            max_payload: NewEvent::DEFAULT_MAX_PAYLOAD_BYTES,
            durability: Durability::Full,
            statement_timeout: Duration::from_secs(30),
            outage_timeout: Duration::from_secs(10),
            poll_interval: Duration::from_secs(1),
            poll_only: false,
            ca_certificate: None,
            clock: Clock::system(),
        }
    }
}
