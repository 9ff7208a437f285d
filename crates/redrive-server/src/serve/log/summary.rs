//! Summary of retry log entries: one line for each endpoint or subscription and minute, instead of one for each failed attempt.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::fields::Fields;

/// Time between two summaries.
const INTERVAL: Duration = Duration::from_secs(60);

/// Largest number of lines of one summary; all further subscriptions share a line.
const MAX_LINES: usize = 1000;

/// The failed attempts since the last summary. Cheap to clone; all clones are one summary.
#[derive(Clone, Debug, Default)]
pub(super) struct RetrySummary {
    // A std mutex: held for a map operation.
    groups: Arc<Mutex<BTreeMap<String, Group>>>,
}

/// The failed attempts of one subscription, with the fields of the last one.
#[derive(Debug, Default)]
struct Group {
    failed_attempts: u64,
    event_id: String,
    event_type: String,
    delay_ms: u64,
    error: String,
}

impl RetrySummary {
    fn groups(&self) -> MutexGuard<'_, BTreeMap<String, Group>> {
        // Every change leaves the map valid, so a poisoned lock is still usable.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one retry log entry. An entry outside of the span of its attempt has only the id of its subscription.
    pub(super) fn add(&self, entry: &Fields) {
        let text = |name: &str| entry.text(name).unwrap_or_default().to_owned();
        let name = entry.text("subscription").or_else(|| entry.text("subscription_id")).unwrap_or_default();
        let mut groups = self.groups();
        let is_full = groups.len() >= MAX_LINES && !groups.contains_key(name);
        let group = groups.entry(if is_full { "(other)" } else { name }.to_owned()).or_default();
        *group = Group {
            failed_attempts: group.failed_attempts + 1,
            event_id: text("event_id"),
            event_type: text("event_type"),
            delay_ms: entry.get("delay_ms").and_then(serde_json::Value::as_u64).unwrap_or_default(),
            error: text("error"),
        };
    }

    /// Writes the lines since the last call. Their target begins like that of the entries, so that one filter selects both.
    pub(super) fn write(&self) {
        let groups = std::mem::take(&mut *self.groups());
        for (subscription, group) in groups {
            tracing::warn!(
                target: "redrive::retry_summary",
                subscription,
                failed_attempts = group.failed_attempts,
                event_id = group.event_id,
                event_type = group.event_type,
                delay_ms = group.delay_ms,
                error = group.error,
                "attempts failed; the fields are those of the last one"
            );
        }
    }

    /// Writes a summary every minute until the guard is dropped, and then the last one.
    pub(super) fn every_minute(self) -> Summaries {
        self.every(INTERVAL)
    }

    fn every(self, interval: Duration) -> Summaries {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("log-summary".to_owned()).spawn(move || {
            loop {
                let is_stopped = stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
                self.write();
                if is_stopped {
                    return;
                }
            }
        });
        if let Err(error) = &thread {
            tracing::error!(target: "redrive::serve", %error, "no summaries of failed attempts: use --log-retries each");
        }
        Summaries { stop: Some(stop), thread: thread.ok() }
    }
}

/// Guard of the thread that writes summaries.
#[derive(Debug)]
pub(super) struct Summaries {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Summaries {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported by the thread
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_summary_is_written_at_every_interval() {
        assert_eq!(INTERVAL, Duration::from_secs(60));
        let summary = RetrySummary::default();
        let _summaries = summary.clone().every(Duration::from_millis(5));
        for _ in 0..2 {
            summary.add(&Fields::default());
            let began = Instant::now();
            while !summary.groups().is_empty() {
                assert!(began.elapsed() < Duration::from_secs(20), "no summary was written");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
