//! The audit log that a command reads: files of JSON lines, or a database.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;

use super::lines::{Line, Lines, MAX_LINE_BYTES};
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::history::History;
use redrive_store::RecordedAttempt;

/// Files or database of a command.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// Files of JSON lines, as the audit sink writes them; - is standard input. Without a file, the database is read
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// File and line, or row, of an entry, for messages.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EntryLocation<'a> {
    /// File or database.
    pub(crate) file: &'a str,
    /// Line of the file, counted from 1.
    pub(crate) line: Option<u64>,
    /// Table and key of the row of a database.
    pub(crate) row: Option<(&'static str, i64)>,
}

/// An entry of the log.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    /// An audit event or another line.
    Line(&'a [u8]),
    /// A recorded attempt of an event or delivery.
    Attempt(&'a RecordedAttempt),
    /// A line that cannot be read, with the reason.
    Unreadable(String),
}

impl Source {
    /// Visits every entry: of the files in their order, or of the database's audit log and then of its recorded attempts. The
    /// database is not changed.
    pub(crate) fn visit(
        &self,
        mut visit: impl FnMut(EntryLocation<'_>, Entry<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.files.is_empty() {
            return self.visit_database(visit);
        }
        for path in &self.files {
            if path == Path::new("-") {
                visit_lines("stdin", io::stdin().lock(), &mut visit)?;
                continue;
            }
            let name = path.display().to_string();
            match File::open(path) {
                Ok(file) => visit_lines(&name, BufReader::with_capacity(64 * 1024, file), &mut visit)?,
                Err(error) => {
                    let location = EntryLocation { file: &name, line: None, row: None };
                    visit(location, Entry::Unreadable(format!("cannot be opened: {error}")))?;
                }
            }
        }
        Ok(())
    }

    /// Number of events and deliveries of the database that succeeded without a failed attempt; `None` for files.
    pub(crate) fn succeeded_at_once(&self) -> Result<Option<u64>, Failure> {
        if !self.files.is_empty() {
            return Ok(None);
        }
        block_on(async { History::open(&self.database.db).await?.succeeded_at_once().await.map(Some) })
    }

    fn visit_database(
        &self,
        mut visit: impl FnMut(EntryLocation<'_>, Entry<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let file = self.database.db.to_string();
        let location = |table, key| EntryLocation { file: &file, line: None, row: Some((table, key)) };
        block_on(async {
            let history = History::open(&self.database.db).await?;
            history
                .audit_lines(|line| visit(location("audit", line.key), Entry::Line(line.line.as_bytes())))
                .await?;
            history.attempts(|row| visit(location("attempt", row.key), Entry::Attempt(&row))).await
        })
    }
}

/// Visits every line of a file.
pub(crate) fn visit_lines(
    name: &str,
    reader: impl BufRead,
    mut visit: impl FnMut(EntryLocation<'_>, Entry<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut lines = Lines::new(reader);
    for number in 1.. {
        let location = EntryLocation { file: name, line: Some(number), row: None };
        match lines.next() {
            Ok(None) => break,
            Ok(Some(Line::Whole(line))) => visit(location, Entry::Line(line))?,
            Ok(Some(Line::TooLong)) => {
                visit(location, Entry::Unreadable(format!("longer than {MAX_LINE_BYTES} bytes")))?;
            }
            // The rest of the file is unreachable.
            Err(error) => return visit(location, Entry::Unreadable(format!("cannot be read: {error}"))),
        }
    }
    Ok(())
}
