//! Progress of a transfer on standard error: a bar on a terminal, else a line at intervals.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use redrive::store::postgres::Step;

use crate::format;

/// Interval of the lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    is_silent: bool,
    /// Total of all tables.
    rows: u64,
    /// Found on the server or copied.
    there: u64,
    compared: u64,
    last_line_at: Instant,
}

impl Progress {
    /// Starts the progress of `rows` rows, each copied and then compared.
    pub(super) fn new(rows: u64, is_silent: bool) -> Self {
        let bar = (!is_silent && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(rows.saturating_mul(2));
            if let Ok(style) = ProgressStyle::with_template("{bar:24.cyan/dim} {wide_msg}") {
                bar.set_style(style.progress_chars("━━─"));
            }
            bar
        });
        Progress { bar, is_silent, rows, there: 0, compared: 0, last_line_at: Instant::now() }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Found(rows) | Step::Copied(rows) => self.there += rows,
            Step::Compared(rows) => self.compared += rows,
        }
        let message = || {
            let (verb, number) =
                if self.compared == 0 { ("copied", self.there) } else { ("compared", self.compared) };
            format!("{} of {} rows {verb}", format::count(number), format::count(self.rows))
        };
        if let Some(bar) = &self.bar {
            // Rows of an earlier run are only compared; they count as copied.
            let there = if self.compared > 0 { self.rows } else { self.there };
            bar.set_position(there + self.compared);
            bar.set_message(message());
        } else if !self.is_silent && self.last_line_at.elapsed() >= LINE_INTERVAL {
            self.last_line_at = Instant::now();
            let _ = writeln!(io::stderr().lock(), "{}", message()); // stderr may be closed
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
