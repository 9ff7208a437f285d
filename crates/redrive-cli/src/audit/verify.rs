//! `redrive audit verify`: recomputes recorded decisions and compares the results.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::line::{Verdict, judge, judge_attempt};
use super::source::{Entry, EntryLocation, Source};
use crate::api::write_json;
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};

/// Further problems are counted, not shown.
const MAX_SHOWN_PROBLEMS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  redrive audit verify audit.jsonl
  redrive audit verify --db postgres://anna@host/shop
  zcat audit-*.jsonl.gz | redrive audit verify -
  redrive audit verify --json *.jsonl | jq .problems

Reads JSON lines: audit events of the type retry_decision, and bare decision records. Other objects are only counted. Without a \
file, it reads the database: the audit log that programs keep there, and the recorded attempts of all events. Nothing is changed.

A decision is a pure function of its recorded inputs, so it can be recomputed. The command finds records that were changed \
after they were written, or that do not match the rules or the row they are in. Exit code 1 if there is a problem, or no record at all.";

/// Recompute recorded decisions and compare the results
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Verify {
    #[command(flatten)]
    source: Source,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    /// Records that match the rules.
    verified: u64,
    /// Records that do not.
    discrepancies: u64,
    /// Lines and files that cannot be read.
    unreadable: u64,
    /// Other JSON objects, and attempts without a decision.
    other: u64,
    /// The first problems.
    problems: Vec<Problem>,
    /// Number of further problems.
    problems_omitted: u64,
}

#[derive(Debug, Serialize)]
struct Problem {
    file: String,
    /// Counted from 1; absent if the file itself cannot be read, and for a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// Table and key of the row of a database: `attempt 17`.
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<String>,
    problem: String,
    /// File with line or row, for people.
    #[serde(skip)]
    position: String,
}

impl Verify {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let mut report = Report::default();
        self.source.visit(|location, entry| {
            report.add(location, entry);
            Ok(())
        })?;
        let printed = match self.json {
            true => write_json(out, &report),
            false => report.print(out, screen).map_err(Failure::from),
        };
        let printed = printed.and_then(|()| Ok(out.flush()?));
        // The verdict counts even if standard output is closed.
        report.verdict().and(printed)
    }
}

impl Report {
    /// Verifies one entry.
    fn add(&mut self, location: EntryLocation<'_>, entry: Entry<'_>) {
        let verdict = match entry {
            Entry::Line(line) => judge(line),
            Entry::Attempt(attempt) => judge_attempt(attempt),
            Entry::Unreadable(why) | Entry::Failed(why) => Verdict::Unreadable(why),
        };
        match verdict {
            Verdict::Verified => self.verified += 1,
            Verdict::Other => self.other += 1,
            Verdict::Blank => {}
            Verdict::Discrepancy(problem) => {
                self.discrepancies += 1;
                self.problem(location, problem);
            }
            Verdict::Unreadable(problem) => {
                self.unreadable += 1;
                self.problem(location, problem);
            }
        }
    }

    fn problem(&mut self, location: EntryLocation<'_>, problem: String) {
        if self.problems.len() == MAX_SHOWN_PROBLEMS {
            self.problems_omitted += 1;
            return;
        }
        let row = location.row.map(|(table, key)| format!("{table} {key}"));
        let (file, position) = (location.file.to_owned(), location.to_string());
        self.problems.push(Problem { file, line: location.line, row, problem, position });
    }

    fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        for Problem { problem, position, .. } in &self.problems {
            writeln!(out, "{}: {problem}", screen.paint(Style::Strong, position))?;
        }
        if self.problems_omitted > 0 {
            writeln!(out, "and {} more", format::count(self.problems_omitted))?;
        }
        let verified = format!("{} verified", format::count(self.verified));
        writeln!(
            out,
            "{}, {} with a discrepancy, {} unreadable, {} other",
            screen.paint(if self.verified > 0 { Style::Good } else { Style::Bad }, verified),
            format::count(self.discrepancies),
            format::count(self.unreadable),
            format::count(self.other)
        )
    }

    fn verdict(&self) -> Result<(), Failure> {
        if self.discrepancies > 0 {
            return Err(Failure::Failed(format!(
                "{} with a discrepancy: keep the file or database unchanged, and compare it with a copy from where it was \
                 written",
                format::counted(self.discrepancies, "record")
            )));
        }
        if self.unreadable > 0 {
            return Err(Failure::Failed(
                "some lines are unreadable and not verified: give complete files of JSON lines, as the audit sink \
                 writes them"
                    .to_owned(),
            ));
        }
        if self.verified == 0 {
            return Err(Failure::Failed(
                "no decision record found: give the file that the audit sink writes, with events of the type \
                 retry_decision, or a database with failed attempts (--db)"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::visit_lines;
    use super::*;
    use std::io::{BufRead, BufReader};

    fn read(reader: impl BufRead) -> Report {
        let mut report = Report::default();
        let visited = visit_lines("log", reader, |location, entry| {
            report.add(location, entry);
            Ok(())
        });
        visited.unwrap();
        report
    }

    #[test]
    fn problems_beyond_the_twentieth_are_counted() {
        let report = read("x\n".repeat(23).as_bytes());
        assert_eq!((report.unreadable, report.problems.len(), report.problems_omitted), (23, 20, 3));
        let mut text = Vec::new();
        let screen = Screen { width: 80, cuts: true, colour: false };
        report.print(&mut text, screen).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("log:20: ") && !text.contains("log:21: ") && text.contains("and 3 more"),
            "{text}"
        );
    }

    #[test]
    fn a_read_error_is_reported_with_its_line() {
        struct Broken(bool);
        impl io::Read for Broken {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    return Err(io::Error::other("the disk is gone"));
                }
                buffer[..3].copy_from_slice(b"{}\n");
                Ok(3)
            }
        }
        let report = read(BufReader::new(Broken(false)));
        assert_eq!((report.other, report.unreadable), (1, 1));
        assert_eq!(report.problems[0].line, Some(2));
        assert!(report.problems[0].problem.contains("the disk is gone"));
    }
}
