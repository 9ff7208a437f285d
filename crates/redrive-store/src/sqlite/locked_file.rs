//! Locks a file against dispatch and writes, to transfer its content to a server.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use super::owner::{self, OwnerLock};
use super::{Durability, schema};
use crate::error::StoreError;

/// A file under a write lock and the owner lock. Other writers wait and fail with [`StoreError::Busy`], so its content does not change.
#[derive(Debug)]
pub(crate) struct LockedFile {
    connection: Connection,
    _owner: OwnerLock,
}

impl LockedFile {
    /// Locks an existing file and migrates it to the current schema.
    pub(crate) fn lock(path: &Path) -> Result<Self, StoreError> {
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
        Ok(LockedFile { connection, _owner: owner })
    }

    /// Returns the connection to read with.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}
