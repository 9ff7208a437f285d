//! The audit log that a command reads: files of JSON lines, or a database.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use redrive_retry::audit::AuditEvent;
use redrive_store::RecordedAttempt;

use super::line;
use super::lines::{Line, Lines, MAX_LINE_BYTES};
use crate::database::{DatabaseArgs, block_on};
use crate::failure::Failure;
use crate::format;
use crate::history::History;
use crate::screen::{Screen, Style};

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

impl fmt::Display for EntryLocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = format::one_line(self.file);
        match (self.line, self.row) {
            (Some(line), _) => write!(f, "{file}:{line}"),
            (None, Some((table, key))) => write!(f, "{file}: {table} {key}"),
            (None, None) => f.write_str(&file),
        }
    }
}

/// An entry of the log.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    /// An audit event or another line.
    Line(&'a [u8]),
    /// A recorded attempt of an event or delivery.
    Attempt(&'a RecordedAttempt),
    /// A line that is too long, with the reason.
    Unreadable(String),
    /// A file that cannot be opened or read further, with the reason: its other lines are missing.
    Failed(String),
}

/// An entry that a command evaluates.
#[derive(Debug)]
pub(crate) enum Recorded<'a> {
    /// An audit event.
    Event(Box<AuditEvent>),
    /// A recorded attempt of an event or delivery.
    Attempt(&'a RecordedAttempt),
}

/// The lines that were left out.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// JSON objects that are no audit events.
    pub(crate) other: u64,
    /// Lines that could not be read.
    pub(crate) unreadable: u64,
    /// The first line that could not be read.
    first: Option<String>,
}

impl LeftOut {
    fn add(&mut self, line: &[u8], location: EntryLocation<'_>) {
        match line {
            blank if blank.trim_ascii().is_empty() => {}
            line if line::is_other_object(line) => self.other += 1,
            _ => self.add_unreadable(location),
        }
    }

    fn add_unreadable(&mut self, location: EntryLocation<'_>) {
        self.unreadable += 1;
        self.first.get_or_insert_with(|| location.to_string());
    }

    /// Says how many lines could not be read; `None` if all could.
    pub(crate) fn note(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(format!("{} could not be read, the first at {first}", format::counted(self.unreadable, "line")))
    }

    /// Prints the note, if there is one.
    pub(crate) fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        match self.note() {
            Some(note) => writeln!(out, "{}", screen.paint(Style::Bad, note)),
            None => Ok(()),
        }
    }
}

impl Source {
    /// Visits audit events and recorded attempts, in the order of [`visit`](Self::visit). Other lines are counted. A file that cannot
    /// be read to its end is an error, because the numbers would be wrong.
    pub(crate) fn visit_recorded(
        &self,
        mut visit: impl FnMut(Recorded<'_>) -> Result<(), Failure>,
    ) -> Result<LeftOut, Failure> {
        let mut left_out = LeftOut::default();
        self.visit(|location, entry| match entry {
            Entry::Line(line) => match serde_json::from_slice(line) {
                Ok(event) => visit(Recorded::Event(event)),
                Err(_) => {
                    left_out.add(line, location);
                    Ok(())
                }
            },
            Entry::Attempt(attempt) => visit(Recorded::Attempt(attempt)),
            Entry::Unreadable(_) => {
                left_out.add_unreadable(location);
                Ok(())
            }
            Entry::Failed(why) => Err(Failure::Failed(format!("{location} {why}"))),
        })?;
        Ok(left_out)
    }

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
                    visit(location, Entry::Failed(format!("cannot be opened: {error}")))?;
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
            Err(error) => return visit(location, Entry::Failed(format!("cannot be read: {error}"))),
        }
    }
    Ok(())
}
