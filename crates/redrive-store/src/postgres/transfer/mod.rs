//! Transfers a SQLite file to a PostgreSQL schema, with the same ids, keys and times.
//!
//! Rows are copied in key order, one page in each transaction. An interrupted transfer has copied a prefix of every table; the
//! next one verifies the prefixes and continues. During the transfer the schema cannot be opened, and nothing in it can be
//! claimed. At the end both sides are read and compared, and one transaction releases the schema.
//!
//! The file is locked meanwhile, and not changed.

mod source;
mod table;
mod target;

use std::cmp::Ordering;
use std::fmt::{self, Write as _};
use std::path::Path;

use rusqlite::types::Value as Cell;
use sha2::{Digest, Sha256};

use self::source::Source;
use self::table::{TABLES, Table};
use self::target::Target;
use super::PostgresOptions;
use crate::error::StoreError;

/// A transfer from a file to a schema on a server.
///
/// ```no_run
/// # use redrive_store::postgres::{PostgresOptions, Transfer};
/// # async fn example() -> Result<(), redrive_store::StoreError> {
/// let transfer =
///     Transfer::open("redrive.db", "postgres://user@host/database", PostgresOptions::default()).await?;
/// for table in transfer.run(&mut |_| {}).await? {
///     println!("{} rows of {} are there: {}", table.rows, table.table, table.checksum);
/// }
/// # Ok(()) }
/// ```
pub struct Transfer {
    source: Source,
    target: Target,
}

/// The work left for one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePlan {
    /// The table.
    pub table: &'static str,
    /// The number of rows in the file.
    pub rows: u64,
    /// The number of rows on the server already.
    pub copied: u64,
}

/// Proof that a table is equal on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableProof {
    /// The table.
    pub table: &'static str,
    /// The number of rows.
    pub rows: u64,
    /// SHA-256 over all rows, in hexadecimal.
    pub checksum: String,
}

/// Progress of a transfer: a number of further rows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Rows of an earlier transfer that were verified.
    Found(u64),
    /// Rows that were copied.
    Copied(u64),
    /// Rows that were compared at the end.
    Compared(u64),
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("schema", &self.target.schema()).finish_non_exhaustive()
    }
}

impl Transfer {
    /// Locks the file, which no process may use meanwhile, and connects to the server. Changes nothing on the server.
    pub async fn open(
        from: impl AsRef<Path>,
        to: &str,
        options: PostgresOptions,
    ) -> Result<Self, StoreError> {
        let source = Source::lock(from.as_ref()).await?;
        let target = Target::connect(to, options).await?;
        Ok(Transfer { source, target })
    }

    /// Returns the work to do. Fails if the schema is in use or has other rows.
    pub async fn plan(&self) -> Result<Vec<TablePlan>, StoreError> {
        let (exists, is_unfinished) = self.target.state().await?;
        let mut plan = Vec::new();
        for table in TABLES {
            let copied = if exists { self.target.count(table).await? } else { 0 };
            plan.push(TablePlan { table: table.name, rows: self.source.count(table).await?, copied });
        }
        if let Some(instance) = if exists { self.target.live_process().await? } else { None } {
            return Err(self.refused(format!("{instance} dispatches from it; stop that process first")));
        }
        // A complete copy is compared. A schema without a started transfer must be empty.
        let is_complete = plan.iter().all(|table| table.copied == table.rows);
        if let Some(table) = plan.iter().find(|table| table.copied > 0 && !is_unfinished && !is_complete) {
            return Err(self.refused(format!("its table {} has {} rows already", table.table, table.copied)));
        }
        Ok(plan)
    }

    fn refused(&self, why: String) -> StoreError {
        StoreError::OccupiedSchema { schema: self.target.schema().to_owned(), why }
    }

    /// Copies the missing rows, compares everything and releases the schema. Reports progress to `step`. After an interruption
    /// the next run continues; if all rows are copied already, it only compares.
    pub async fn run(&self, step: &mut (dyn FnMut(Step) + Send)) -> Result<Vec<TableProof>, StoreError> {
        let plan = self.plan().await?;
        let (exists, is_unfinished) = self.target.state().await?;
        let is_new = plan.iter().all(|table| table.copied == 0);
        if !exists || is_new || is_unfinished {
            self.target.migrate().await?;
            if !is_unfinished {
                self.begin().await?;
            }
            for (table, plan) in TABLES.iter().zip(&plan) {
                let from = match plan.copied {
                    0 => table.start(),
                    _ => self.compare(table, step, Step::Found, false).await?.1,
                };
                self.copy(table, from, step).await?;
            }
        }
        let mut proofs = Vec::new();
        for table in TABLES {
            proofs.push(self.compare(table, step, Step::Compared, true).await?.0);
        }
        if self.target.state().await?.1 {
            self.target.finish().await?;
        }
        Ok(proofs)
    }

    async fn begin(&self) -> Result<(), StoreError> {
        let mut largest = Vec::new();
        for table in TABLES.iter().filter(|table| table.has_sequence) {
            largest.push((table, self.source.largest_key(table).await?));
        }
        // Sequences start at 1.
        largest.retain(|(_, key)| *key > 0);
        self.target.begin(&largest).await
    }

    async fn copy(
        &self,
        table: &'static Table,
        mut after: Cell,
        step: &mut (dyn FnMut(Step) + Send),
    ) -> Result<(), StoreError> {
        loop {
            let rows = self.source.page(table, after).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            self.target.insert(table, &rows).await?;
            step(Step::Copied(rows.len() as u64));
            after = last[0].clone();
        }
    }

    /// Compares a table on both sides. Returns its proof, and the last key that is equal. Unless `is_whole`, the server may
    /// have a prefix of the rows, and nothing else.
    async fn compare(
        &self,
        table: &'static Table,
        step: &mut (dyn FnMut(Step) + Send),
        counted: fn(u64) -> Step,
        is_whole: bool,
    ) -> Result<(TableProof, Cell), StoreError> {
        let (mut after, mut rows) = (table.start(), 0);
        let (mut here, mut there) = (Sha256::new(), Sha256::new());
        loop {
            let expected = self.source.page(table, after.clone()).await?;
            if expected.is_empty() {
                break;
            }
            let mut found = self.target.rows_like(table, &expected).await?;
            found.sort_by(|one, other| in_order(&one[0], &other[0]));
            let same = expected.iter().zip(&found).take_while(|(expected, found)| expected == found).count();
            digest(&mut here, &expected[..same]);
            digest(&mut there, &found[..same]);
            step(counted(same as u64));
            rows += same as u64;
            if let Some(row) = same.checked_sub(1).map(|last| &expected[last]) {
                after = row[0].clone();
            }
            if same < found.len() || (is_whole && same < expected.len()) {
                return Err(self.differs(table, &expected[same][0]));
            }
            if same < expected.len() {
                break;
            }
        }
        let (here, there) = (hexadecimal(here), hexadecimal(there));
        if self.target.count(table).await? != rows || here != there {
            return Err(self.differs(table, &after));
        }
        Ok((TableProof { table: table.name, rows, checksum: there }, after))
    }

    fn differs(&self, table: &Table, key: &Cell) -> StoreError {
        let at = match key {
            Cell::Integer(key) if *key > i64::MIN => format!(" at key {key}"),
            Cell::Text(key) if !key.is_empty() => format!(" at key {key:?}"),
            _ => String::new(),
        };
        self.refused(format!(
            "its table {} differs from the file{at}: it comes from another file, or was used since",
            table.name
        ))
    }
}

/// Key order as in the file: numeric, or bytewise.
fn in_order(one: &Cell, other: &Cell) -> Ordering {
    match (one, other) {
        (Cell::Integer(one), Cell::Integer(other)) => one.cmp(other),
        (Cell::Text(one), Cell::Text(other)) => one.as_bytes().cmp(other.as_bytes()),
        _ => Ordering::Equal,
    }
}

/// Hashes every cell with its kind and length, so that different rows never have the same input.
fn digest(digest: &mut Sha256, rows: &[Vec<Cell>]) {
    for cell in rows.iter().flatten() {
        let (kind, bytes): (u8, &[u8]) = match cell {
            Cell::Null => (0, &[]),
            Cell::Integer(number) => (1, &number.to_be_bytes()),
            Cell::Real(number) => (2, &number.to_be_bytes()),
            Cell::Text(text) => (3, text.as_bytes()),
            Cell::Blob(bytes) => (4, bytes),
        };
        digest.update([kind]);
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    }
}

fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}
