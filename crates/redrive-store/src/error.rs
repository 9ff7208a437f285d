//! The error type of the stores.

use std::path::PathBuf;

use crate::event::ModelError;

/// An error of a store. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is no SQLite database, or belongs to another program.
    #[error("{path} is not a Redrive database: {why}; choose another file, or move this one away")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The file was written by a newer release.
    #[error(
        "{path} has schema version {found} and this release knows {known}: use the release that wrote it, or a newer one"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the schema.
        found: i64,
        /// Newest version that this release knows.
        known: i64,
    },
    /// Another process dispatches from this file.
    #[error(
        "{path} is in use by {owner}: one process dispatches from one file; stop that one, or use another file"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The owning process.
        owner: String,
    },
    /// The file cannot be written.
    #[error(
        "{path} cannot be written: {source}; check its permissions, those of its folder, and the file system"
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// Reading or writing failed while the file was opened.
    #[error("{path} cannot be opened: {source}; check the disk and its free space, then open it again")]
    Disk {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// The disk is full. Nothing was stored, and the store stays usable.
    #[error("the disk is full, so nothing was stored: free some space and try again")]
    DiskFull,
    /// Another process holds the write lock for too long. Nothing was stored.
    #[error("the database is locked by another process: let it finish, then try again")]
    Busy,
    /// A commit was not confirmed. Its changes may or may not be on disk.
    #[error(
        "the outcome is unknown, because the commit was not confirmed ({why}): publish again with the same id, which stores one event"
    )]
    Unknown {
        /// The cause.
        why: String,
    },
    /// The store refuses all writes after an error that leaves its content unknown.
    #[error("the store has stopped after an I/O error ({why}): check the disk, then open the file again")]
    Stopped {
        /// The cause.
        why: String,
    },
    /// The store was closed.
    #[error("the store is closed: open it again")]
    Closed,
    /// The payload is larger than allowed.
    #[error(
        "a payload of {bytes} bytes is larger than the limit of {limit}: store it outside and publish a reference, or raise the limit"
    )]
    PayloadTooLarge {
        /// Size in bytes.
        bytes: usize,
        /// Limit.
        limit: usize,
    },
    /// The metadata is larger than allowed.
    #[error(
        "metadata of {bytes} bytes is larger than the limit of {limit}: put large values into the payload"
    )]
    MetadataTooLarge {
        /// Size in bytes.
        bytes: usize,
        /// Limit.
        limit: usize,
    },
    /// A batch has too many events.
    #[error("a batch of {events} events is larger than the limit of {limit}: publish it in parts")]
    BatchTooLarge {
        /// Number of events.
        events: usize,
        /// Limit.
        limit: usize,
    },
    /// The event does not exist.
    #[error("there is no event {id}")]
    NoSuchEvent {
        /// The event's id.
        id: crate::event::EventId,
    },
    /// Another event is stored under the id.
    #[error(
        "the id {id} belongs to an event with another type or payload: publish this one under another id"
    )]
    IdTaken {
        /// The id.
        id: crate::event::EventId,
    },
    /// The event is not in the dead-letter queue.
    #[error("event {id} is not in the dead-letter queue: it is {status}")]
    NotDead {
        /// The event's id.
        id: crate::event::EventId,
        /// The event's status.
        status: crate::event::EventStatus,
    },
    /// A document with this key exists already.
    #[error("there is already a document {key}: choose another id, or change that one")]
    DocumentTaken {
        /// The document's key.
        key: crate::document::DocumentKey,
    },
    /// The document was changed since the given version.
    #[error(
        "document {key} has changed meanwhile: read it again, and apply the change to the current version"
    )]
    DocumentChanged {
        /// The document's key.
        key: crate::document::DocumentKey,
        /// Current version; `None` if the document was removed.
        version: Option<u64>,
    },
    /// The document is larger than allowed.
    #[error("a document of {bytes} bytes is larger than the limit of {limit}: make it smaller")]
    DocumentTooLarge {
        /// Size in bytes.
        bytes: usize,
        /// Limit.
        limit: usize,
    },
    /// The body of a document is not JSON.
    #[error("a document has to be JSON: {why}")]
    DocumentNotJson {
        /// The problem.
        why: String,
    },
    /// An invalid id, type, name, cursor, key or status.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file is damaged. Intact rows stay readable; a change that was in flight may or may not be on disk.
    #[error(
        "the database is damaged ({why}): stop writing to it and keep a copy of the file with its -wal; `redrive doctor` \
         reports the extent; then continue with a backup, or with the output of `sqlite3 FILE .recover`"
    )]
    Damaged {
        /// The error of SQLite.
        why: String,
    },
    /// SQLite returned an error.
    #[error("SQLite: {0}; `redrive doctor` says whether the file is sound")]
    Engine(rusqlite::Error),
    /// The address of a PostgreSQL server cannot be parsed.
    #[error(
        "not an address of a PostgreSQL server: {why}; write postgres://user:password@host:5432/database"
    )]
    Address {
        /// The problem, without the password.
        why: String,
    },
    /// Invalid name of a schema.
    #[error(
        "{name:?} cannot be the name of a schema: use 1 to 40 lower-case letters, digits and `_`, and begin with a letter"
    )]
    SchemaName {
        /// The given name.
        name: String,
    },
    /// The server cannot be reached. Nothing was changed.
    #[error("{server} cannot be reached: {why}; check host, port, network and whether the server runs")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The cause.
        why: String,
    },
    /// The certificate of the server is not trusted.
    #[error(
        "{server} presents a certificate that is not trusted: {why}; name the certificate authority, as in \
         postgres://…/database?sslrootcert=/path/to/ca.pem, or use ?sslmode=disable where the network is your own"
    )]
    Untrusted {
        /// Host and port.
        server: String,
        /// The problem.
        why: String,
    },
    /// The connection to the server broke during a request.
    #[error(
        "the connection to the server was lost ({why}), and the request may or may not have been carried out: check the result, or send it again"
    )]
    Lost {
        /// The cause.
        why: String,
    },
    /// The server refused the login.
    #[error(
        "{server} refuses the login of {user}: {why}; check user and password, and the server's pg_hba.conf"
    )]
    Login {
        /// Host and port.
        server: String,
        /// The user.
        user: String,
        /// The message of the server.
        why: String,
    },
    /// The database does not exist.
    #[error("{server} has no such database: {why}; create it, or name another one in the address")]
    NoSuchDatabase {
        /// Host and port.
        server: String,
        /// The message of the server.
        why: String,
    },
    /// The user lacks a privilege.
    #[error(
        "the user lacks a privilege: {why}; let a user who may create schemas open the store once, and grant this one USAGE on the \
         schema, SELECT, INSERT, UPDATE and DELETE on its tables, and USAGE and SELECT on its sequences"
    )]
    Forbidden {
        /// The message of the server.
        why: String,
    },
    /// The schema could not be migrated because a transaction holds its tables. Nothing was changed.
    #[error(
        "the schema {schema} cannot be migrated, because a transaction holds its tables: let it end, or end it (see pg_stat_activity), then open the store again"
    )]
    SchemaLocked {
        /// Name of the schema.
        schema: String,
    },
    /// The configuration of the server does not make commits durable.
    #[error("the server is not safe to use: {why}; {advice}")]
    UnsafeServer {
        /// The problem.
        why: String,
        /// The remedy.
        advice: String,
    },
    /// The schema was written by a newer release.
    #[error(
        "schema {schema} has version {found} and this release knows {known}: use the release that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The schema.
        schema: String,
        /// Version of the schema.
        found: i64,
        /// Newest version that this release knows.
        known: i64,
    },
    /// The schema does not exist, and creating it was not requested.
    #[error(
        "there is no schema {schema} in this database: name that of your program, as in postgres://…/database?schema=name, \
         or let the program open it once"
    )]
    NoSchema {
        /// The schema.
        schema: String,
    },
    /// A transfer into the schema is not complete.
    #[error(
        "a transfer of events into schema {schema} is not complete: wait for `redrive migrate` to end; if it \
         was interrupted, run it again, and it continues where it stopped"
    )]
    UnfinishedTransfer {
        /// The schema.
        schema: String,
    },
    /// The schema cannot be the target of a transfer.
    #[error(
        "schema {schema} cannot be the target of a transfer: {why}; name an empty one, as in postgres://…/database?schema=name, or \
         drop this one with its content"
    )]
    OccupiedSchema {
        /// The schema.
        schema: String,
        /// The obstacle.
        why: String,
    },
    /// The schema belongs to another program.
    #[error("schema {schema} is not one of Redrive's: {why}; choose another name")]
    ForeignSchema {
        /// The schema.
        schema: String,
        /// The problem.
        why: String,
    },
    /// Every connection of the pool stayed in use until the timeout.
    #[error(
        "all connections to the server are in use: raise the size of the pool, or send fewer concurrent requests"
    )]
    Exhausted,
    /// The text contains a NUL character, which PostgreSQL cannot store.
    #[error("a payload with a NUL character in it is not JSON and cannot be stored: write it as \\u0000")]
    Nul,
    /// PostgreSQL returned an error.
    #[cfg(feature = "postgres")]
    #[error("PostgreSQL: {why}")]
    Server {
        /// The message of the server.
        why: String,
        /// The complete error.
        source: tokio_postgres::Error,
    },
    /// A file operation failed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether the cause may go away without a change of the program or its settings: a server that is away or busy, or a full disk.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            StoreError::Unknown { .. }
                | StoreError::Unreachable { .. }
                | StoreError::Lost { .. }
                | StoreError::Busy
                | StoreError::Disk { .. }
                | StoreError::DiskFull
                | StoreError::Exhausted
        )
    }

    /// Whether the database cannot be used for now, as on a full disk, whatever was asked of it.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            StoreError::ReadOnly { .. }
                | StoreError::Disk { .. }
                | StoreError::DiskFull
                | StoreError::Busy
                | StoreError::Unknown { .. }
                | StoreError::Stopped { .. }
                | StoreError::Closed
                | StoreError::Unreachable { .. }
                | StoreError::Lost { .. }
                | StoreError::Exhausted
        )
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        if is_damage(&error) {
            StoreError::Damaged { why: error.to_string() }
        } else {
            StoreError::Engine(error)
        }
    }
}

/// Returns whether SQLite reports a corrupt file.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt)
}
