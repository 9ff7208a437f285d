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
    /// The expression in the file, if it differs from the name.
    source: Option<&'static str>,
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

const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, source: None, kind }
}

const fn column_from(name: &'static str, source: &'static str, kind: Kind) -> Column {
    Column { name, source: Some(source), kind }
}

/// All tables, in the order of copying. The end of the transfer fills derived columns (ready time and owner).
pub(super) const TABLES: &[Table] = &[
    Table {
        name: "event",
        source: "event",
        columns: &[
            column("key", Kind::Big),
            column("id", Kind::Id),
            column("type", Kind::Text),
            column("status", Kind::Small),
            column("retry_count", Kind::Integer),
            column("crashes", Kind::Integer),
            column("first_at", Kind::Big),
            column("owes", Kind::Flag),
            column("due_at", Kind::Big),
            column("last_error", Kind::Errors),
            column("handled", Kind::Text),
            column("created_at", Kind::Big),
            column("updated_at", Kind::Big),
        ],
        has_sequence: true,
    },
    Table {
        name: "payload",
        source: "event",
        columns: &[
            column_from("event_key", "key", Kind::Big),
            column("payload", Kind::Text),
            column("metadata", Kind::Text),
            column("retry", Kind::Text),
        ],
        has_sequence: false,
    },
    Table {
        name: "delivery",
        source: "delivery",
        columns: &[
            column("key", Kind::Big),
            column("event_key", Kind::Big),
            column("subscription", Kind::Text),
            column("status", Kind::Small),
            column("retry_count", Kind::Integer),
            column("crashes", Kind::Integer),
            column("first_at", Kind::Big),
            column("due_at", Kind::Big),
            column("last_error", Kind::Errors),
            column("updated_at", Kind::Big),
        ],
        has_sequence: true,
    },
    Table {
        name: "attempt",
        source: "attempt",
        columns: &[
            column("key", Kind::Big),
            column("event_key", Kind::Big),
            column("subscription", Kind::Text),
            column("attempt", Kind::Integer),
            column("started_at", Kind::Big),
            column("duration_ms", Kind::Big),
            column("class", Kind::Text),
            column("delay_ms", Kind::Big),
            column("error", Kind::EscapedText),
            column("record", Kind::Text),
            column("detail", Kind::Text),
        ],
        has_sequence: true,
    },
    Table {
        name: "dead_letter",
        source: "dead_letter",
        columns: &[
            column("key", Kind::Big),
            column("event_key", Kind::Big),
            column("subscription", Kind::Text),
            column("type", Kind::Text),
            column("created_at", Kind::Big),
            column("dlq_at", Kind::Big),
            column("reason", Kind::EscapedText),
            column("fingerprint", Kind::EscapedText),
            column("error", Kind::EscapedText),
        ],
        has_sequence: true,
    },
    Table {
        name: "redriven",
        source: "redriven",
        columns: &[
            column("key", Kind::Big),
            column("event_key", Kind::Big),
            column("at", Kind::Big),
            column("errors", Kind::Errors),
            column("payload", Kind::Text),
        ],
        has_sequence: true,
    },
    Table {
        name: "subscriptions",
        source: "subscriptions",
        columns: &[
            column_from("key", "rowid", Kind::Big),
            column("id", Kind::Text),
            column("name", Kind::Text),
            column("event_type", Kind::Text),
            column("created_at", Kind::Text),
        ],
        has_sequence: true,
    },
    Table {
        name: "idempotency",
        source: "idempotency",
        columns: &[
            column("key", Kind::Text),
            column("fingerprint", Kind::Bytes),
            column("state", Kind::Small),
            // NOT NULL on the server.
            column_from("owner", "coalesce(owner, zeroblob(16))", Kind::Id),
            column("until", Kind::Big),
            column("result", Kind::EscapedText),
            column("metadata", Kind::EscapedText),
            column("created_at", Kind::Big),
            column("updated_at", Kind::Big),
        ],
        has_sequence: false,
    },
    Table {
        name: "document",
        source: "document",
        columns: &[
            column("key", Kind::Text),
            column("version", Kind::Big),
            column("body", Kind::Text),
            column("created_at", Kind::Big),
            column("updated_at", Kind::Big),
        ],
        has_sequence: false,
    },
    Table {
        name: "audit",
        source: "audit",
        columns: &[column("key", Kind::Big), column("at", Kind::Big), column("line", Kind::Text)],
        has_sequence: true,
    },
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
        let names: Vec<&str> = self.columns.iter().map(Column::source).collect();
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
    fn source(&self) -> &'static str {
        self.source.unwrap_or(self.name)
    }

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
        let number = |cell: &Cell| if let Cell::Integer(number) = cell { Some(*number) } else { None };
        match self {
            Kind::Small => Box::new(
                cells
                    .map(|cell| number(cell).and_then(|number| i16::try_from(number).ok()))
                    .collect::<Vec<_>>(),
            ),
            Kind::Integer => Box::new(
                cells
                    .map(|cell| number(cell).and_then(|number| i32::try_from(number).ok()))
                    .collect::<Vec<_>>(),
            ),
            Kind::Big => Box::new(cells.map(number).collect::<Vec<_>>()),
            Kind::Flag => {
                Box::new(cells.map(|cell| number(cell).map(|number| number == 1)).collect::<Vec<_>>())
            }
            Kind::Id => Box::new(cells.map(id).collect::<Vec<_>>()),
            Kind::Bytes => Box::new(cells.map(bytes).collect::<Vec<_>>()),
            Kind::Text | Kind::EscapedText | Kind::Errors => Box::new(cells.map(string).collect::<Vec<_>>()),
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

fn id(cell: &Cell) -> Option<Uuid> {
    if let Cell::Blob(bytes) = cell { Uuid::from_slice(bytes).ok() } else { None }
}

fn bytes(cell: &Cell) -> Option<Vec<u8>> {
    if let Cell::Blob(bytes) = cell { Some(bytes.clone()) } else { None }
}

fn string(cell: &Cell) -> Option<String> {
    if let Cell::Text(text) = cell { Some(text.clone()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

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
