//! `redrive policy explain`: prints the delay and time of each attempt.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use redrive_retry::RetryPolicy;
use redrive_retry::decision::Identity;
use serde::Serialize;

use super::bars::bars;
use super::description::describe;
use super::explain_picture::draw;
use super::policy_args::{PolicyArgs, with_presets};
use super::schedule::{Row, Schedule};
use super::write_picture;
use crate::api::write_json;
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};

/// A longer table shows only its first and last rows; JSON has all.
const MAX_ROWS: usize = 50;
const HEAD_ROWS: usize = 20;
const TAIL_ROWS: usize = 5;

const EXAMPLES: &str = "\
Examples:
  redrive policy explain
  redrive policy explain --preset webhook --svg waits.svg
  redrive policy explain --preset webhook --max-attempts 12 --cap 10m
  redrive policy explain --base 500ms --jitter full --json | jq .total_max_ms
  redrive policy explain --seed 7 --event order-1 --subscription shipping

The table has the delay before each attempt, its range with jitter, and the running total. With --seed it also has the exact \
delays that the bus would choose for one event.";

/// Show the delay before each attempt, its jitter range and the running total
#[derive(Debug, Args)]
#[command(after_help = with_presets(EXAMPLES))]
pub(crate) struct Explain {
    #[command(flatten)]
    policy: PolicyArgs,
    /// Also show the delays of one event under this seed
    #[arg(long, value_name = "N", help_heading = "One event")]
    seed: Option<u64>,
    /// Id of the event, with --seed
    #[arg(long, value_name = "ID", default_value = "example", requires = "seed", help_heading = "One event")]
    event: String,
    /// Name of the subscription, with --seed
    #[arg(
        long,
        value_name = "NAME",
        default_value = "example",
        requires = "seed",
        help_heading = "One event"
    )]
    subscription: String,
    /// Print one JSON object with every attempt
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Also write an SVG picture to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document<'a> {
    policy: &'a RetryPolicy,
    /// Time from the first attempt to the last, without jitter.
    total_ms: u64,
    total_min_ms: u64,
    total_max_ms: u64,
    attempts: Schedule<'a>,
}

impl Explain {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let policy = self.policy.policy()?;
        let schedule = Schedule {
            policy: &policy,
            identity: self.seed.map(|seed| Identity::new(seed, &self.event, &self.subscription)),
        };
        if let Some(path) = &self.svg {
            let command = format!("redrive policy explain {}", self.policy.flags());
            write_picture(path, &draw(schedule, &self.policy.name(), &command))?;
        }
        if self.json {
            let last = schedule.last();
            let document = Document {
                policy: &policy,
                total_ms: last.total_ms,
                total_min_ms: last.total_min_ms,
                total_max_ms: last.total_max_ms,
                attempts: schedule,
            };
            return write_json(out, &document);
        }
        self.print(schedule, out, screen)
    }

    fn print(&self, schedule: Schedule<'_>, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let headline = format!("{}: {}.", self.policy.name(), describe(schedule.policy));
        writeln!(out, "{}", screen.paint(Style::Strong, screen.wrap(&headline)))?;
        writeln!(out, "{}\n", screen.wrap(&ending(schedule.last())))?;
        let (first, omitted, last) = schedule.ends(MAX_ROWS, HEAD_ROWS, TAIL_ROWS);
        for line in table(&first, omitted, &last, screen) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        for line in bars(&first, omitted, &last, screen) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// Time of the last attempt.
fn ending(last: Row) -> String {
    if last.attempt == 1 {
        return "If the only attempt fails, the event is dead.".to_owned();
    }
    let range = if last.total_min_ms == last.total_max_ms {
        String::new()
    } else {
        format!(
            " ({} to {} with jitter)",
            format::duration(last.total_min_ms),
            format::duration(last.total_max_ms)
        )
    };
    format!(
        "The last attempt comes {}{range} after the first; if it fails, the event is dead.",
        format::duration(last.total_ms)
    )
}

/// Formats the rows in right-aligned columns.
fn table(first: &[Row], omitted: usize, last: &[Row], screen: Screen) -> Vec<String> {
    let seeded = first.iter().any(|row| row.seeded_ms.is_some());
    let cells = |row: &Row| {
        let mut cells = vec![
            row.attempt.to_string(),
            format::duration(row.delay_ms),
            format::range(row.min_ms, row.max_ms),
            format::duration(row.total_ms),
        ];
        cells.extend(row.seeded_ms.map(format::duration));
        cells
    };
    let mut header = vec!["attempt", "delay", "range", "total"];
    if seeded {
        header.push("this event");
    }
    let rows: Vec<Vec<String>> = first.iter().chain(last).map(cells).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([header[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        padded.join("   ")
    };
    let mut lines = vec![screen.paint(Style::Quiet, line(&mut header.iter().copied()))];
    for (index, row) in rows.iter().enumerate() {
        if omitted > 0 && index == first.len() {
            let count = format::counted(omitted as u64, "attempt");
            let note = format!("{:>1$}   {count} omitted, --json has all", "⋮", widths[0]);
            lines.push(screen.paint(Style::Quiet, note));
        }
        lines.push(line(&mut row.iter().map(String::as_str)));
    }
    lines
}
