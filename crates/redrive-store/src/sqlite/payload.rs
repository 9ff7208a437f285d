//! Payloads, as far as a query reads them: they can be large, and few who look at many events want them.

use rusqlite::Row;
use serde_json::value::RawValue;

use super::rows;
use crate::error::StoreError;
use crate::query::Unread;

pub(super) trait Payload: Sized {
    /// What stands in the list of columns.
    const COLUMN: &'static str;

    fn read(row: &Row<'_>, column: usize) -> Result<Self, StoreError>;
}

impl Payload for Box<RawValue> {
    const COLUMN: &'static str = "payload";

    fn read(row: &Row<'_>, column: usize) -> Result<Self, StoreError> {
        rows::raw(row, column)
    }
}

impl Payload for Unread {
    const COLUMN: &'static str = "NULL";

    fn read(_: &Row<'_>, _: usize) -> Result<Self, StoreError> {
        Ok(Unread)
    }
}
