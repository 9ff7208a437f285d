//! What can go wrong with a store.

use std::path::PathBuf;

use crate::event::ModelError;

/// What can go wrong with a store. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is not a database, or not one of ours.
    #[error("{path} is not a Redrive database: {why}; choose another file, or move this one away")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file was written by a newer release.
    #[error(
        "{path} has schema version {found} and this release knows {known}: use the release that wrote it, or a newer one"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// What this release knows.
        known: i64,
    },
    /// Another process dispatches from this file.
    #[error(
        "{path} is in use by {owner}: one process dispatches from one file; stop that one, or use another file"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Who has it.
        owner: String,
    },
    /// The file cannot be written.
    #[error(
        "{path} cannot be written: {source}; check its permissions, those of its folder, and the file system"
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// What the engine said.
        source: rusqlite::Error,
    },
    /// The disk refused while the file was opened.
    #[error("{path} cannot be opened: {source}; check the disk and its free space, then open it again")]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the engine said.
        source: rusqlite::Error,
    },
    /// The disk is full. Nothing was stored, and nothing is broken.
    #[error("the disk is full, so nothing was stored: free some space and try again")]
    DiskFull,
    /// Another process holds the file for too long. Nothing was stored.
    #[error("the database is locked by another process: let it finish, then try again")]
    Busy,
    /// A commit was not confirmed. It may or may not be on disk.
    #[error(
        "the outcome is unknown, because the commit was not confirmed ({why}): publish again with the same id, which is one event"
    )]
    Unknown {
        /// What happened.
        why: String,
    },
    /// The store stopped after an error that it cannot continue from.
    #[error("the store has stopped after an I/O error ({why}): check the disk, then open the file anew")]
    Stopped {
        /// What happened.
        why: String,
    },
    /// The store was closed.
    #[error("the store is closed: open it anew")]
    Closed,
    /// The payload is larger than allowed.
    #[error(
        "a payload of {bytes} bytes is larger than the limit of {limit}: store it elsewhere and publish a reference, or raise the limit"
    )]
    PayloadTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The metadata is larger than allowed.
    #[error(
        "metadata of {bytes} bytes is larger than the limit of {limit}: put what is large into the payload"
    )]
    MetadataTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many events at once.
    #[error("a batch of {events} events is larger than the limit of {limit}: publish it in parts")]
    BatchTooLarge {
        /// How many.
        events: usize,
        /// The limit.
        limit: usize,
    },
    /// There is no such event.
    #[error("there is no event {id}")]
    NoSuchEvent {
        /// Which.
        id: crate::event::EventId,
    },
    /// The event is not in the dead-letter queue.
    #[error("event {id} is not in the dead-letter queue: it is {status}")]
    NotDead {
        /// Which.
        id: crate::event::EventId,
        /// What it is.
        status: crate::event::EventStatus,
    },
    /// There is a document under this key already.
    #[error("there is already a document {key}: choose another id, or change that one")]
    DocumentTaken {
        /// Which.
        key: crate::document::DocumentKey,
    },
    /// Somebody else has changed the document.
    #[error("document {key} has changed meanwhile: read it again, and make the change to what is there now")]
    DocumentChanged {
        /// Which.
        key: crate::document::DocumentKey,
        /// In which version it is now; `None` if it is gone.
        version: Option<u64>,
    },
    /// The document is larger than allowed.
    #[error("a document of {bytes} bytes is larger than the limit of {limit}: make it smaller")]
    DocumentTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A document is JSON.
    #[error("a document that is no JSON cannot be stored: {why}")]
    DocumentNotJson {
        /// What is wrong with it.
        why: String,
    },
    /// An invalid part.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file is damaged. What can still be read, can be read; a change that was under way may or may not be on disk.
    #[error(
        "the database is damaged ({why}): stop writing to it and keep a copy of the file with its -wal; `redrive doctor` \
         says how bad it is; then go on with a backup, or with what `sqlite3 FILE .recover` saves"
    )]
    Damaged {
        /// What the engine said.
        why: String,
    },
    /// The engine refused.
    #[error("SQLite: {0}; `redrive doctor` says whether the file is sound")]
    Engine(rusqlite::Error),
    /// The address of a PostgreSQL server cannot be understood.
    #[error(
        "not an address of a PostgreSQL server: {why}; write postgres://user:password@host:5432/database"
    )]
    Address {
        /// What is wrong with it, without the password.
        why: String,
    },
    /// Not a name for the schema.
    #[error(
        "{name:?} cannot be the name of a schema: use 1 to 40 lower-case letters, digits and `_`, and begin with a letter"
    )]
    SchemaName {
        /// What was given.
        name: String,
    },
    /// The server cannot be reached. Nothing was changed.
    #[error("{server} cannot be reached: {why}; check host, port, network and whether the server runs")]
    Unreachable {
        /// Host and port.
        server: String,
        /// What happened.
        why: String,
    },
    /// The server cannot prove that it is who it says.
    #[error(
        "{server} shows a certificate that nobody here trusts: {why}; name who has signed it, as in \
         postgres://…/database?sslrootcert=/path/to/ca.pem, or use ?sslmode=disable where the network is your own"
    )]
    Untrusted {
        /// Host and port.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// The connection to the server broke in the middle of it.
    #[error(
        "the connection to the server was lost ({why}), and what was asked may or may not have been done: look, or ask again"
    )]
    Lost {
        /// What happened.
        why: String,
    },
    /// The server does not let this user in.
    #[error("{server} does not let {user} in: {why}; check user and password, and the server's pg_hba.conf")]
    Login {
        /// Host and port.
        server: String,
        /// Who.
        user: String,
        /// What the server said.
        why: String,
    },
    /// There is no such database.
    #[error("{server} has no such database: {why}; create it, or name another one in the address")]
    NoSuchDatabase {
        /// Host and port.
        server: String,
        /// What the server said.
        why: String,
    },
    /// The user may not do that.
    #[error(
        "the database forbids it: {why}; let a user who may create schemas open the store once, and grant this one USAGE on the \
         schema, SELECT, INSERT, UPDATE and DELETE on its tables, and USAGE and SELECT on its sequences"
    )]
    Forbidden {
        /// What the server said.
        why: String,
    },
    /// The schema could not be brought up to date, because somebody holds its tables. Nothing was changed.
    #[error(
        "the schema {schema} cannot be brought up to date, because a transaction holds its tables: let it end, or end it (see pg_stat_activity), then open the store again"
    )]
    HeldUp {
        /// Its name.
        schema: String,
    },
    /// The server is not set up to keep what it has confirmed.
    #[error("the server is not safe to use: {why}; {advice}")]
    UnsafeServer {
        /// What is wrong.
        why: String,
        /// What to do.
        advice: String,
    },
    /// The schema was made by a newer release.
    #[error(
        "schema {schema} has version {found} and this release knows {known}: use the release that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The schema.
        schema: String,
        /// Its version.
        found: i64,
        /// What this release knows.
        known: i64,
    },
    /// There is no such schema, and it was not to be made.
    #[error(
        "there is no schema {schema} in this database: name that of your program, as in postgres://…/database?schema=name, \
         or let the program open it once"
    )]
    NoSchema {
        /// The schema.
        schema: String,
    },
    /// Not everything has been moved into the schema yet.
    #[error(
        "events are being moved into schema {schema}, and not all of them are there: wait for `redrive migrate` to end; if it \
         was cut off, run it again, and it goes on where it ended"
    )]
    UnfinishedTransfer {
        /// The schema.
        schema: String,
    },
    /// Nothing can be moved into the schema.
    #[error(
        "nothing can be moved into schema {schema}: {why}; name an empty one, as in postgres://…/database?schema=name, or \
         remove this one with all that is in it"
    )]
    OccupiedSchema {
        /// The schema.
        schema: String,
        /// What is in the way.
        why: String,
    },
    /// The schema belongs to another program.
    #[error("schema {schema} is not one of Redrive's: {why}; choose another name")]
    ForeignSchema {
        /// The schema.
        schema: String,
        /// What is wrong with it.
        why: String,
    },
    /// Every connection is in use, and was for long.
    #[error("all connections to the server are in use: raise the size of the pool, or ask for less at once")]
    Exhausted,
    /// The text holds a character that the database cannot keep.
    #[error("a payload with a NUL character in it is not JSON and cannot be stored: write it as \\u0000")]
    Nul,
    /// PostgreSQL refused.
    #[cfg(feature = "postgres")]
    #[error("PostgreSQL: {why}")]
    Server {
        /// What it said.
        why: String,
        /// The whole of it.
        source: tokio_postgres::Error,
    },
    /// A file operation failed.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
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

/// Whether the engine has found something in the file that cannot be.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt)
}
