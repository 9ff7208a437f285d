//! A file that is held still: nobody dispatches from it, and nobody writes to it.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use super::owner::{self, OwnerLock};
use super::{Durability, schema};
use crate::error::StoreError;

/// While this lives, whoever wants to write to the file waits, and is refused in the end: nothing is stored that its holder
/// would not see.
#[derive(Debug)]
pub(crate) struct HeldFile {
    connection: Connection,
    _owner: OwnerLock,
}

impl HeldFile {
    /// Holds a file that must be there. It is brought up to date, as by everybody who opens it.
    pub(crate) fn hold(path: &Path) -> Result<Self, StoreError> {
        if let Err(source) = path.metadata() {
            return Err(StoreError::File { path: path.into(), source });
        }
        let path = owner::real_path(path);
        let owner = OwnerLock::acquire(&path)?;
        let connection = schema::open_writer(&path, Durability::Full)?;
        connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
            _ => schema::explain(&path, error),
        })?;
        Ok(HeldFile { connection, _owner: owner })
    }

    /// To read with.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}
