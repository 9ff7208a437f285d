//! Payload columns: full rows read the payload, summaries leave it out.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::error::StoreError;
use crate::query::PayloadOmitted;

/// The payload of a listed row: read, or omitted.
pub(crate) trait Payload: Sized {
    /// Returns the expression for the list of columns; `column` is that of the payload.
    fn select(column: &'static str) -> &'static str;

    /// Converts the text of the column, which is read only if it was selected.
    fn read<'r>(text: impl FnOnce() -> Result<Cow<'r, str>, StoreError>) -> Result<Self, StoreError>;
}

impl Payload for Box<RawValue> {
    fn select(column: &'static str) -> &'static str {
        column
    }

    /// Shows a payload that was changed by hand and is no JSON as a JSON string.
    fn read<'r>(text: impl FnOnce() -> Result<Cow<'r, str>, StoreError>) -> Result<Self, StoreError> {
        let text = text()?.into_owned();
        let shown = RawValue::from_string(text.clone()).or_else(|_| serde_json::value::to_raw_value(&text));
        shown.map_err(|error| StoreError::Stopped { why: error.to_string() })
    }
}

impl Payload for PayloadOmitted {
    fn select(_: &'static str) -> &'static str {
        "NULL"
    }

    fn read<'r>(_: impl FnOnce() -> Result<Cow<'r, str>, StoreError>) -> Result<Self, StoreError> {
        Ok(PayloadOmitted)
    }
}
