//! The tables of a transfer, and the translation of their columns from the file to the server.

use rusqlite::types::{Value as Cell, ValueRef};
use uuid::Uuid;

use super::super::{nul_escape, value::Value};
use crate::error::StoreError;

/// A table on the server and the source of its rows. The first column is the unique key, and the order of copying.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// The table in the file.
    pub(super) source: &'static str,
    pub(super) columns: &'static [Column],
    /// Whether the server issues keys from a sequence, which must start after the copied ones.
    pub(super) has_sequence: bool,
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// The expression in the file.
    source: &'static str,
    pub(super) kind: Kind,
}

/// The type of a column.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Small,
    Integer,
    Big,
    Flag,
    Id,
    Bytes,
    Text,
    /// Text with any character, escaped by `nul_escape`.
    EscapedText,
    /// A JSON array of errors, each escaped by `nul_escape`.
    Errors,
}

/// Defines a table: its name, whether it has a sequence, the table in the file, and its columns with their kinds. A column may have
/// an expression in the file behind `=`.
macro_rules! table {
    ($name:literal, $has_sequence:literal, $source:literal, $($column:literal $(= $expression:literal)? $kind:ident),*) => {
        Table {
            name: $name,
            source: $source,
            columns: &[$(Column { name: $column, source: table!(@ $column $(, $expression)?), kind: Kind::$kind }),*],
            has_sequence: $has_sequence,
        }
    };
    (@ $column:literal) => { $column };
    (@ $column:literal, $expression:literal) => { $expression };
}

/// All tables, in the order of copying. The end of the transfer fills derived columns (ready time and owner) and the retry queue.
pub(super) const TABLES: &[Table] = &[
    table!("event", true, "event",
        "key" Big, "id" Id, "type" Text, "status" Small, "retry_count" Integer, "crashes" Integer,
        "first_at" Big, "owes" Flag, "due_at" Big, "last_error" Errors, "handled" Text, "created_at" Big,
        "updated_at" Big),
    table!("payload", false, "event",
        "event_key" = "key" Big, "payload" Text, "metadata" Text, "retry" Text),
    table!("delivery", true, "delivery",
        "key" Big, "event_key" Big, "subscription" Text, "status" Small, "retry_count" Integer,
        "crashes" Integer, "first_at" Big, "due_at" Big, "last_error" Errors, "updated_at" Big,
        "lease" Text, "leased_at" Big),
    table!("attempt", true, "attempt",
        "key" Big, "event_key" Big, "subscription" Text, "attempt" Integer, "started_at" Big,
        "duration_ms" Big, "class" Text, "delay_ms" Big, "error" EscapedText, "record" Text, "detail" Text,
        "of_delivery" Flag, "redriven" Flag),
    table!("dead_letter", true, "dead_letter",
        "key" Big, "event_key" Big, "subscription" Text, "type" Text, "created_at" Big, "dlq_at" Big,
        "reason" EscapedText, "fingerprint" EscapedText, "error" EscapedText, "target" Text),
    table!("redriven", true, "redriven",
        "key" Big, "event_key" Big, "at" Big, "errors" Errors, "payload" Text),
    table!("subscriptions", true, "subscriptions",
        "key" = "rowid" Big, "id" Text, "name" Text, "event_type" Text, "created_at" Text),
    table!("idempotency", false, "idempotency",
        "key" Text, "fingerprint" Bytes, "state" Small,
        // NOT NULL on the server.
        "owner" = "coalesce(owner, zeroblob(16))" Id, "until" Big, "result" EscapedText, "metadata" EscapedText,
        "created_at" Big, "updated_at" Big),
    table!("document", false, "document",
        "key" Text, "version" Big, "body" Text, "created_at" Big, "updated_at" Big),
    table!("audit", true, "audit", "key" Big, "at" Big, "line" Text),
];

impl Table {
    pub(super) fn key(&self) -> &'static str {
        self.columns[0].name
    }

    /// A value before all keys.
    pub(super) fn start(&self) -> Cell {
        match self.columns[0].kind {
            Kind::Text => Cell::Text(String::new()),
            _ => Cell::Integer(i64::MIN),
        }
    }

    /// Selects the rows after ?1 in the file.
    pub(super) fn select_source(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|column| column.source).collect();
        let key = names[0];
        format!("SELECT {} FROM {} WHERE {key} > ?1 ORDER BY {key} LIMIT ?2", names.join(", "), self.source)
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
        names.join(", ")
    }

    /// Selects the rows with the keys $1 on the server.
    pub(super) fn select_target(&self) -> String {
        let (key, kind) = (self.key(), self.columns[0].kind.name());
        format!("SELECT {} FROM redrive.{} WHERE {key} = ANY($1::{kind}[])", self.names(), self.name)
    }

    pub(super) fn count_target(&self) -> String {
        format!("SELECT count(*) FROM redrive.{}", self.name)
    }

    pub(super) fn insert(&self) -> String {
        let arrays: Vec<String> = (1..)
            .zip(self.columns)
            .map(|(number, column)| format!("${number}::{}[]", column.kind.name()))
            .collect();
        format!(
            "INSERT INTO redrive.{} ({}) SELECT * FROM unnest({})",
            self.name,
            self.names(),
            arrays.join(", ")
        )
    }
}

impl Column {
    /// Translates a value of the file for the server. Fails if the column cannot hold it.
    pub(super) fn translate(&self, found: ValueRef<'_>) -> Result<Cell, StoreError> {
        let fits = |number: i64| match self.kind {
            Kind::Small => i16::try_from(number).is_ok(),
            Kind::Integer => i32::try_from(number).is_ok(),
            Kind::Flag => matches!(number, 0 | 1),
            Kind::Big => true,
            Kind::Id | Kind::Bytes | Kind::Text | Kind::EscapedText | Kind::Errors => false,
        };
        match (found, self.kind) {
            (ValueRef::Null, _) => Ok(Cell::Null),
            (ValueRef::Integer(number), _) if fits(number) => Ok(Cell::Integer(number)),
            (ValueRef::Blob(bytes), Kind::Bytes) => Ok(Cell::Blob(bytes.to_owned())),
            (ValueRef::Blob(bytes), Kind::Id) if bytes.len() == 16 => Ok(Cell::Blob(bytes.to_owned())),
            (ValueRef::Text(bytes), kind) if kind.is_text() => {
                // Lenient like the reader of the file.
                let found = String::from_utf8_lossy(bytes);
                match kind {
                    Kind::EscapedText => Ok(Cell::Text(nul_escape::escape(&found).into_owned())),
                    Kind::Errors => Ok(Cell::Text(errors(&found))),
                    _ if found.contains('\0') => Err(self.damaged("holds a NUL character")),
                    _ => Ok(Cell::Text(found.into_owned())),
                }
            }
            _ => Err(self.damaged("holds a value of the wrong type or range")),
        }
    }

    fn damaged(&self, why: &str) -> StoreError {
        StoreError::Damaged { why: format!("column {} {why}", self.name) }
    }
}

/// Escapes each error if needed. A value that is no JSON array counts as one error, as for the reader of the file.
fn errors(found: &str) -> String {
    match serde_json::from_str::<Vec<String>>(found) {
        Ok(all) if all.iter().all(|error| *nul_escape::escape(error) == **error) => found.to_owned(),
        Ok(all) => {
            format!(
                "[{}]",
                all.iter().map(|error| nul_escape::json_string(error)).collect::<Vec<_>>().join(",")
            )
        }
        Err(_) => format!("[{}]", nul_escape::json_string(found)),
    }
}

impl Kind {
    fn is_text(self) -> bool {
        matches!(self, Kind::Text | Kind::EscapedText | Kind::Errors)
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Small => "smallint",
            Kind::Integer => "integer",
            Kind::Big => "bigint",
            Kind::Flag => "boolean",
            Kind::Id => "uuid",
            Kind::Bytes => "bytea",
            Kind::Text | Kind::EscapedText | Kind::Errors => "text",
        }
    }

    /// Makes an array parameter of a column's translated cells.
    pub(super) fn values<'a>(self, cells: impl Iterator<Item = &'a Cell>) -> Box<dyn Value> {
        fn all<'a, T>(
            cells: impl Iterator<Item = &'a Cell>,
            read: impl Fn(&Cell) -> Option<T>,
        ) -> Box<dyn Value>
        where
            Vec<Option<T>>: Value + 'static,
        {
            Box::new(cells.map(read).collect::<Vec<_>>())
        }
        let number = |cell: &Cell| if let Cell::Integer(number) = cell { Some(*number) } else { None };
        let blob = |cell: &Cell| if let Cell::Blob(bytes) = cell { Some(bytes.clone()) } else { None };
        match self {
            Kind::Small => all(cells, |cell| i16::try_from(number(cell)?).ok()),
            Kind::Integer => all(cells, |cell| i32::try_from(number(cell)?).ok()),
            Kind::Big => all(cells, number),
            Kind::Flag => all(cells, |cell| Some(number(cell)? == 1)),
            Kind::Id => all(cells, |cell| Uuid::from_slice(&blob(cell)?).ok()),
            Kind::Bytes => all(cells, blob),
            Kind::Text | Kind::EscapedText | Kind::Errors => all(cells, |cell| match cell {
                Cell::Text(text) => Some(text.clone()),
                _ => None,
            }),
        }
    }

    /// Reads a value from the server.
    pub(super) fn read(self, row: &tokio_postgres::Row, column: usize) -> Cell {
        let number = |number: Option<i64>| number.map_or(Cell::Null, Cell::Integer);
        match self {
            Kind::Small => number(row.get::<_, Option<i16>>(column).map(i64::from)),
            Kind::Integer => number(row.get::<_, Option<i32>>(column).map(i64::from)),
            Kind::Big => number(row.get(column)),
            Kind::Flag => number(row.get::<_, Option<bool>>(column).map(i64::from)),
            Kind::Id => {
                row.get::<_, Option<Uuid>>(column).map_or(Cell::Null, |id| Cell::Blob(id.as_bytes().to_vec()))
            }
            Kind::Bytes => row.get::<_, Option<Vec<u8>>>(column).map_or(Cell::Null, Cell::Blob),
            Kind::Text | Kind::EscapedText | Kind::Errors => {
                row.get::<_, Option<String>>(column).map_or(Cell::Null, Cell::Text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &'static str, kind: Kind) -> Column {
        Column { name, source: name, kind }
    }

    #[test]
    fn errors_are_copied_unchanged_unless_they_contain_nul() {
        assert_eq!(errors(r#"["a", "b"]"#), r#"["a", "b"]"#);
        assert_eq!(errors("[\"a\\u0000\"]"), "[\"a\u{10FFFE}0\"]");
        assert_eq!(errors("nonsense"), r#"["nonsense"]"#);
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_with_the_column_name() {
        let status = column("status", Kind::Small);
        assert_eq!(status.translate(ValueRef::Integer(5)).unwrap(), Cell::Integer(5));
        for wrong in [ValueRef::Integer(1 << 20), ValueRef::Text(b"5"), ValueRef::Real(1.0)] {
            let error = status.translate(wrong).unwrap_err().to_string();
            assert!(error.contains("column status"), "{error}");
        }
        assert!(column("payload", Kind::Text).translate(ValueRef::Text(b"a\0")).is_err());
    }
}
