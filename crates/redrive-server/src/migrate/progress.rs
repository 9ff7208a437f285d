//! How far a transfer is: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use redrive::postgres::Step;

use crate::label;

/// How often a line is written where there is no terminal.
const EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    is_silent: bool,
    /// Of all tables.
    rows: u64,
    /// Found or copied.
    there: u64,
    compared: u64,
    spoke: Instant,
}

impl Progress {
    /// For so many rows, which are copied and then compared.
    pub(super) fn new(rows: u64, is_silent: bool) -> Self {
        let bar = (!is_silent && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(rows.saturating_mul(2));
            if let Ok(style) = ProgressStyle::with_template("{bar:24.cyan/dim} {wide_msg}") {
                bar.set_style(style.progress_chars("━━─"));
            }
            bar
        });
        Progress { bar, is_silent, rows, there: 0, compared: 0, spoke: Instant::now() }
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Found(rows) | Step::Copied(rows) => self.there += rows,
            Step::Compared(rows) => self.compared += rows,
        }
        let message = || {
            let (verb, number) =
                if self.compared == 0 { ("copied", self.there) } else { ("compared", self.compared) };
            format!("{} of {} rows {verb}", label::count(number), label::count(self.rows))
        };
        if let Some(bar) = &self.bar {
            // What was copied before and only has to be compared counts as copied.
            let there = if self.compared > 0 { self.rows } else { self.there };
            bar.set_position(there + self.compared);
            bar.set_message(message());
        } else if !self.is_silent && self.spoke.elapsed() >= EVERY {
            self.spoke = Instant::now();
            // Whoever does not read it loses nothing.
            let _ = writeln!(io::stderr().lock(), "{}", message());
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
