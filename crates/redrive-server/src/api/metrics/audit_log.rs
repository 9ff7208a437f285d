//! Metrics of the audit log that programs keep in the database: guarded calls with a failed attempt, by category.

use redrive::store::Store;
use redrive_retry::audit::AuditEvent;
use tokio::sync::Mutex;

use crate::audit_tally::{Row, Tallies};
use crate::metric_family::{Family, Kind};

/// Lines that one statement reads.
const PAGE_LINES: u32 = 1000;
/// Pages that one scrape reads; the next one continues.
const MAX_PAGES: usize = 20;

/// Counters of the audit log, and how far it was read.
#[derive(Debug, Default)]
pub(crate) struct AuditLog {
    read: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    after: Option<i64>,
    tallies: Tallies,
}

impl AuditLog {
    /// Reads the lines since the last call and returns all counters. A store that is unavailable adds nothing.
    pub(super) async fn rows(&self, store: &dyn Store) -> Vec<Row> {
        let mut progress = self.read.lock().await;
        for _ in 0..MAX_PAGES {
            let Ok(lines) = store.audit_lines(progress.after, PAGE_LINES).await else { break };
            for line in &lines {
                progress.after = Some(line.key);
                if let Ok(event) = serde_json::from_str::<AuditEvent>(&line.line) {
                    progress.tallies.event(&event);
                }
            }
            if lines.len() < PAGE_LINES as usize {
                break;
            }
        }
        progress.tallies.rows()
    }
}

/// Calls by outcome and attempts, by category.
pub(super) fn families(rows: &[Row]) -> [Family; 2] {
    let mut calls = Family::new(
        "redrive_audit_calls_total",
        "Finished guarded calls with a failed attempt in the audit log, by category and outcome: succeeded, failed.",
        Kind::Counter,
    );
    let mut attempts = Family::new(
        "redrive_audit_attempts_total",
        "Attempts of guarded calls with a failed attempt in the audit log, by category.",
        Kind::Counter,
    );
    for row in rows {
        for (outcome, count) in [("succeeded", row.succeeded), ("failed", row.failed)] {
            calls = calls.with(vec![("category", row.name.clone()), ("outcome", outcome.to_owned())], count);
        }
        attempts = attempts.with(vec![("category", row.name.clone())], row.total_attempts);
    }
    [calls, attempts]
}
