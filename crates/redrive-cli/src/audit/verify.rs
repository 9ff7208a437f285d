//! `redrive audit verify`: recomputes recorded decisions and compares the results.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::line::{Verdict, judge};
use super::lines::{Line, Lines, MAX_LINE_BYTES};
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};

/// Further problems are counted, not shown.
const MAX_SHOWN_PROBLEMS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  redrive audit verify audit.jsonl
  zcat audit-*.jsonl.gz | redrive audit verify -
  redrive audit verify --json *.jsonl | jq .problems

Reads JSON lines: audit events of the type retry_decision, and bare decision records. Other objects are only counted.

A decision is a pure function of its recorded inputs, so it can be recomputed. The command finds records that were changed \
after they were written, or that do not match the rules. Exit code 1 if there is a problem, or no record at all.";

/// Recompute recorded decisions and compare the results
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Verify {
    /// Files of JSON lines; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
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
    /// Other JSON objects.
    other: u64,
    /// The first problems.
    problems: Vec<Problem>,
    /// Number of further problems.
    problems_omitted: u64,
}

#[derive(Debug, Serialize)]
struct Problem {
    file: String,
    /// Counted from 1; absent if the file itself cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    problem: String,
}

impl Verify {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let mut report = Report::default();
        for path in &self.files {
            if path == Path::new("-") {
                report.read("stdin", io::stdin().lock());
            } else {
                let name = path.display().to_string();
                match File::open(path) {
                    Ok(file) => report.read(&name, BufReader::with_capacity(64 * 1024, file)),
                    Err(error) => report.unreadable(&name, None, format!("cannot be opened: {error}")),
                }
            }
        }
        let printed = if self.json {
            serde_json::to_writer(&mut *out, &report).map_err(io::Error::from).and_then(|()| writeln!(out))
        } else {
            report.print(out, screen)
        };
        let printed = printed.and_then(|()| out.flush());
        // The verdict counts even if standard output is closed.
        report.verdict().and(printed.map_err(Failure::from))
    }
}

impl Report {
    /// Verifies every line of a file.
    fn read(&mut self, name: &str, reader: impl BufRead) {
        let mut lines = Lines::new(reader);
        for number in 1.. {
            let verdict = match lines.next() {
                Ok(None) => return,
                Ok(Some(Line::Whole(line))) => judge(line),
                Ok(Some(Line::TooLong)) => Verdict::Unreadable(format!("longer than {MAX_LINE_BYTES} bytes")),
                // The rest of the file is unreachable.
                Err(error) => return self.unreadable(name, Some(number), format!("cannot be read: {error}")),
            };
            match verdict {
                Verdict::Verified => self.verified += 1,
                Verdict::Other => self.other += 1,
                Verdict::Blank => {}
                Verdict::Discrepancy(problem) => {
                    self.discrepancies += 1;
                    self.problem(name, Some(number), problem);
                }
                Verdict::Unreadable(problem) => self.unreadable(name, Some(number), problem),
            }
        }
    }

    fn unreadable(&mut self, file: &str, line: Option<u64>, problem: String) {
        self.unreadable += 1;
        self.problem(file, line, problem);
    }

    fn problem(&mut self, file: &str, line: Option<u64>, problem: String) {
        if self.problems.len() == MAX_SHOWN_PROBLEMS {
            self.problems_omitted += 1;
            return;
        }
        let file = file.to_owned();
        self.problems.push(Problem { file, line, problem });
    }

    fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        for Problem { file, line, problem } in &self.problems {
            let position = line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"));
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
                "{} with a discrepancy: keep the file unchanged, and compare it with a copy from where it was \
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
                 retry_decision"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_beyond_the_twentieth_are_counted() {
        let mut report = Report::default();
        report.read("log", "x\n".repeat(23).as_bytes());
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
        let mut report = Report::default();
        report.read("log", BufReader::new(Broken(false)));
        assert_eq!((report.other, report.unreadable), (1, 1));
        assert_eq!(report.problems[0].line, Some(2));
        assert!(report.problems[0].problem.contains("the disk is gone"));
    }
}
