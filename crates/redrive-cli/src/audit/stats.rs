//! `redrive audit stats`: attempts, success rate and average attempts by category and subscription.

use std::io::{self, Write};

use clap::Args;
use redrive_retry::Timestamp;
use redrive_retry::audit::AuditEvent;
use redrive_server::audit_tally::{Row, Tallies};
use serde::Serialize;

use super::source::{LeftOut, Recorded, Source};
use crate::api::write_json;
use crate::failure::Failure;
use crate::history::works::{End, Works};
use crate::screen::{Screen, Style};
use crate::table::Table;
use crate::{format, time_format};

/// Count attempts, successes and retries per minute by category and subscription
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive audit stats audit.jsonl
  redrive audit stats --db redrive.db --since 24h
  redrive audit stats audit.jsonl --since 10m --alert-above 100    exit code 1 if a minute had more than 100 retries

Counts calls, events and deliveries with at least one failed attempt: a call that succeeds at once writes no audit event. GET /metrics \
of a server, and RetryManager::metrics() of a program, count all of them. Without a file, it reads the database: the audit log \
that programs keep there (by category), and the recorded attempts of all events (by subscription). Nothing is changed.")]
pub(crate) struct Stats {
    #[command(flatten)]
    source: Source,
    /// Only what was recorded after this instant or within this time, such as 24h
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    since: Option<Timestamp>,
    /// Fail if a category or subscription had more retries than this in one minute
    #[arg(long, value_name = "N")]
    alert_above: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    /// By the code of the category of guarded calls.
    categories: Vec<Row>,
    /// By subscription of events and deliveries.
    subscriptions: Vec<Row>,
    /// JSON objects that are no audit events.
    other: u64,
    /// Lines that could not be read.
    unreadable: u64,
}

impl Stats {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let (document, left_out) = self.count()?;
        if self.json {
            write_json(out, &document)?;
        } else {
            document.print(out, screen)?;
            left_out.print(out, screen)?;
        }
        self.alert(&document)
    }

    fn count(&self) -> Result<(Document, LeftOut), Failure> {
        let (mut categories, mut subscriptions) = (Tallies::default(), Tallies::default());
        let mut works = Works::since(self.since);
        let left_out = self.source.visit_recorded(|recorded| {
            match recorded {
                Recorded::Event(event) if self.since.is_none_or(|since| time(&event) >= since) => {
                    categories.event(&event);
                }
                Recorded::Event(_) => {}
                Recorded::Attempt(attempt) => works.attempt(attempt)?,
            }
            Ok(())
        })?;
        for work in works.collect().works {
            let succeeded = match work.end {
                End::Open => None,
                End::Succeeded(_) => Some(true),
                End::Dead | End::Permanent => Some(false),
            };
            subscriptions.work(&work.target, &work.failures, succeeded);
        }
        let LeftOut { other, unreadable, .. } = left_out;
        let (categories, subscriptions) = (categories.rows(), subscriptions.rows());
        Ok((Document { categories, subscriptions, other, unreadable }, left_out))
    }

    fn alert(&self, document: &Document) -> Result<(), Failure> {
        let Some(limit) = self.alert_above else { return Ok(()) };
        let rows = document.categories.iter().chain(&document.subscriptions);
        let over: Vec<String> = rows
            .filter(|row| row.max_retries_per_minute > limit)
            .map(|row| {
                format!("{} ({})", format::one_line(&row.name), format::count(row.max_retries_per_minute))
            })
            .collect();
        if over.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "more than {} retries in one minute: {}; look for the cause with redrive audit list",
            format::count(limit),
            over.join(", ")
        )))
    }
}

fn time(event: &AuditEvent) -> Timestamp {
    match event {
        AuditEvent::RetryAttempt(e) => e.timestamp,
        AuditEvent::RetryExhausted(e) => e.timestamp,
        AuditEvent::Idempotency(e) => e.timestamp,
        AuditEvent::RetryDecision(e) => e.record.situation().now,
    }
}

impl Document {
    fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        if self.categories.is_empty() && self.subscriptions.is_empty() {
            return writeln!(out, "No failed attempts.");
        }
        for (name, rows) in [("category", &self.categories), ("subscription", &self.subscriptions)] {
            if !rows.is_empty() {
                table(name, rows).print(out, screen)?;
                writeln!(out)?;
            }
        }
        writeln!(
            out,
            "{}",
            screen.paint(Style::Quiet, "Only work with at least one failed attempt is counted.")
        )
    }
}

fn table(name: &'static str, rows: &[Row]) -> Table<7> {
    let cells = |row: &Row| {
        [
            format::one_line(&row.name),
            format::count(row.calls),
            format::count(row.total_attempts),
            row.success_rate.map_or_else(String::new, |rate| format!("{:.1} %", rate * 100.0)),
            row.avg_attempts.map_or_else(String::new, |average| format!("{average:.2}")),
            format::count(row.failed),
            format::count(row.max_retries_per_minute),
        ]
    };
    let heading = [name, "finished", "attempts", "success rate", "avg attempts", "failed", "max retries/min"];
    Table::new(heading, rows.iter().map(cells)).right(&[1, 2, 3, 4, 5, 6])
}
