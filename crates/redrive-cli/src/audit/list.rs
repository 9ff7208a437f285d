//! `redrive audit list`: lists audit events and recorded attempts, newest first.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use clap::builder::PossibleValuesParser;
use redrive_retry::audit::AuditEvent;
use redrive_retry::decision::{Decision, DecisionRecord};
use redrive_retry::{Category, Timestamp};
use redrive_store::RecordedAttempt;
use serde::Serialize;
use serde_json::{Value, json};

use super::line::EVENT_TYPES;
use super::source::{Recorded, Source};
use crate::api::write_json;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::table::Table;
use crate::{format, time_format};

/// List audit events and recorded attempts, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive audit list audit.jsonl --type retry_exhausted
  redrive audit list --db redrive.db --since 1h
  redrive audit list audit.jsonl --category API_REQUEST --json | jq -r '.data[].exception_message'

Without a file, it reads the database: the audit log that programs keep there, and the recorded attempts of all events, which \
have the type attempt. Nothing is changed.")]
pub(crate) struct List {
    #[command(flatten)]
    source: Source,
    /// Only this type: retry_attempt, retry_exhausted, idempotency, retry_decision or attempt
    #[arg(long = "type", value_name = "TYPE", value_parser = types())]
    event_type: Option<String>,
    /// Only this category of calls, such as API_REQUEST
    #[arg(long, value_name = "CATEGORY", value_parser = |text: &str| Category::custom(text.to_owned()))]
    category: Option<Category>,
    /// Only what was recorded after this instant or within this time, such as 2h
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    since: Option<Timestamp>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The types that `--type` selects.
fn types() -> PossibleValuesParser {
    PossibleValuesParser::new(EVENT_TYPES.into_iter().chain([ATTEMPT]))
}

/// Type of the recorded attempts of events.
const ATTEMPT: &str = "attempt";

/// An entry as it is listed.
struct Listed {
    at: Timestamp,
    event_type: &'static str,
    category: Option<Category>,
    operation: String,
    attempt: Option<u32>,
    text: String,
    json: Value,
}

#[derive(Serialize)]
struct Document {
    data: Vec<Value>,
    /// Lines that could not be read.
    unreadable: u64,
}

impl List {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        // The newest ones, by time and by their order in the log.
        let mut newest: BTreeMap<(Timestamp, u64), Listed> = BTreeMap::new();
        let mut number = 0;
        let left_out = self.source.visit_recorded(|recorded| {
            number += 1;
            let listed = match recorded {
                Recorded::Event(event) => of_event(*event),
                Recorded::Attempt(attempt) => of_attempt(attempt),
            };
            if self.matches(&listed) {
                newest.insert((listed.at, number), listed);
                if newest.len() > self.limit as usize {
                    newest.pop_first();
                }
            }
            Ok(())
        })?;
        let newest: Vec<Listed> = newest.into_values().rev().collect();
        if self.json {
            let data = newest.into_iter().map(|listed| listed.json).collect();
            return write_json(out, &Document { data, unreadable: left_out.unreadable });
        }
        if newest.is_empty() {
            writeln!(out, "No audit events.")?;
            return Ok(left_out.print(out, screen)?);
        }
        let row = |listed: &Listed| {
            [
                listed.at.to_string(),
                listed.event_type.to_owned(),
                listed.category.as_ref().map_or("", Category::name).to_owned(),
                format::one_line(&listed.operation),
                listed.attempt.map_or_else(String::new, |attempt| attempt.to_string()),
                format::one_line(&listed.text),
            ]
        };
        let heading = ["time", "type", "category", "operation", "attempt", "result"];
        Table::new(heading, newest.iter().map(row)).right(&[4]).print(out, screen)?;
        Ok(left_out.print(out, screen)?)
    }

    fn matches(&self, listed: &Listed) -> bool {
        self.event_type.as_ref().is_none_or(|wanted| wanted == listed.event_type)
            && self.category.as_ref().is_none_or(|wanted| listed.category.as_ref() == Some(wanted))
            && self.since.is_none_or(|since| listed.at >= since)
    }
}

fn of_event(event: AuditEvent) -> Listed {
    let json = serde_json::to_value(&event).unwrap_or_default();
    let (event_type, category, operation, at, attempt, text) = match event {
        AuditEvent::RetryAttempt(e) => {
            let text =
                format!("{}: {}; again after {}s", e.exception_type, e.exception_message, e.delay_seconds);
            ("retry_attempt", e.retry_category, e.operation, e.timestamp, Some(e.attempt_number), text)
        }
        AuditEvent::RetryExhausted(e) => {
            let text = format!("{}: {}", e.final_exception_type, e.final_exception_message);
            ("retry_exhausted", e.retry_category, e.operation, e.timestamp, Some(e.total_attempts), text)
        }
        AuditEvent::Idempotency(e) => {
            let text = format!("{} {}", e.action.as_str(), e.idempotency_key);
            ("idempotency", e.retry_category, e.operation, e.timestamp, None, text)
        }
        AuditEvent::RetryDecision(e) => {
            let situation = e.record.situation();
            let (at, attempt) = (situation.now, Some(situation.attempt));
            ("retry_decision", e.retry_category, e.operation, at, attempt, decided(&e.record))
        }
    };
    Listed { at, event_type, category: Some(category), operation, attempt, text, json }
}

/// A recorded attempt of an event or delivery.
fn of_attempt(row: &RecordedAttempt) -> Listed {
    let attempt = &row.attempt;
    let record = attempt.record.as_ref().map(|record| serde_json::from_str::<Value>(&record.0).ok());
    let json = json!({
        "event_type": ATTEMPT, "event_id": row.event_id, "type": row.event_type,
        "operation": attempt.subscription, "attempt_number": attempt.attempt, "delay_ms": attempt.delay_ms,
        "duration_ms": attempt.duration_ms, "class": attempt.class, "exception_message": attempt.error,
        "timestamp": attempt.started_at.to_string(), "record": record,
    });
    let text = match (attempt.class, attempt.delay_ms) {
        (None, _) => "succeeded".to_owned(),
        (Some(_), 0) => attempt.error.clone(),
        (Some(_), delay) => format!("{}; again after {}", attempt.error, format::duration(delay)),
    };
    Listed {
        at: attempt.started_at,
        event_type: ATTEMPT,
        category: None,
        operation: attempt.subscription.clone(),
        attempt: Some(attempt.attempt),
        text,
        json,
    }
}

fn decided(record: &DecisionRecord) -> String {
    match record.decision() {
        Decision::Done => "done".to_owned(),
        Decision::Retry { delay_ms, .. } => format!("retry after {}", format::duration(delay_ms)),
        Decision::Park { until, .. } => format!("parked until {until}"),
        Decision::Dead { because } => format!("dead: {because}"),
    }
}
