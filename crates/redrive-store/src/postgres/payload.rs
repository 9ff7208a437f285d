//! Payloads, as far as a query reads them: they can be large, and few who look at many events want them.

use serde_json::value::RawValue;
use tokio_postgres::Row;

use super::rows;
use crate::error::StoreError;
use crate::query::Unread;

pub(super) trait Payload: Sized {
    /// What stands in the list of columns, where `p` is the table.
    const COLUMN: &'static str;

    fn read(row: &Row, column: usize) -> Result<Self, StoreError>;
}

impl Payload for Box<RawValue> {
    const COLUMN: &'static str = "p.payload";

    fn read(row: &Row, column: usize) -> Result<Self, StoreError> {
        rows::raw(row, column)
    }
}

impl Payload for Unread {
    const COLUMN: &'static str = "NULL";

    fn read(_: &Row, _: usize) -> Result<Self, StoreError> {
        Ok(Unread)
    }
}
