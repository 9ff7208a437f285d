//! How to open a store on PostgreSQL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redrive_retry::Clock;

use super::Durability;

/// How to open a store on PostgreSQL. The defaults are meant to be kept.
///
/// ```
/// use redrive_store::PostgresOptions;
/// let options = PostgresOptions { schema: "billing".into(), lanes: 2, ..PostgresOptions::default() };
/// assert_eq!(options.lease.as_secs(), 15);
/// ```
#[derive(Clone)]
pub struct PostgresOptions {
    /// The schema that everything is in, unless the address names one.
    pub schema: String,
    /// Whether to make the schema if it is not there. Who only looks does not mean a new one.
    pub create: bool,
    /// How this process is called. One that comes back under the same name, on the same machine, takes back at once what it
    /// held; everybody else waits until the lease has run out. Default: the name of the machine.
    pub instance: String,
    /// How long what a process has claimed stays its own after its last sign of life.
    pub lease: Duration,
    /// How many connections store and settle. Whatever waits becomes one statement on the next free one.
    pub lanes: usize,
    /// How many connections there are at most for everything else.
    pub pool: usize,
    /// How many publishers and settlements may wait for a lane; those beyond wait themselves.
    pub queue: usize,
    /// The largest payload, in bytes.
    pub max_payload: usize,
    /// When a change counts as stored. [`Durability::Full`] refuses a server that is not set up for it.
    pub durability: Durability,
    /// After this time the server gives up on a statement, and on a transaction in which nothing happens.
    pub statement_timeout: Duration,
    /// How long a call waits for a server that is away before it fails.
    pub patience: Duration,
    /// How often to look for what others have stored, where nobody says so.
    pub look_again: Duration,
    /// For a pooler that gives every transaction another connection (PgBouncer): no LISTEN, no lock that outlives a
    /// transaction, no settings of the session, and no prepared statements. The timeouts are then the pooler's affair, and a
    /// process that comes back waits for its own lease. The address may say it, too: `?poll_only=true`.
    pub poll_only: bool,
    /// Who may sign the server's certificate, as a PEM file; the address may name it: `?sslrootcert=/etc/ca.pem`. Default: whom
    /// the machine trusts.
    pub ca_certificate: Option<PathBuf>,
    /// Virtual time stands still while the store works.
    pub clock: Clock,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions {
            schema: "redrive".into(),
            create: true,
            instance: gethostname::gethostname().to_string_lossy().into_owned(),
            lease: Duration::from_secs(15),
            lanes: 4,
            pool: 8,
            queue: 4096,
            max_payload: 1 << 20,
            durability: Durability::Full,
            statement_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            look_again: Duration::from_secs(1),
            poll_only: false,
            ca_certificate: None,
            clock: Clock::system(),
        }
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("instance", &self.instance)
            .field("lease", &self.lease)
            .field("lanes", &self.lanes)
            .field("durability", &self.durability)
            .field("poll_only", &self.poll_only)
            .finish_non_exhaustive()
    }
}
