//! Prints one JSON object per measurement.

use std::error::Error;
use std::time::Duration;

use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Report {
    Rate {
        count: usize,
        seconds: f64,
        /// The time was up before all was done.
        cut: bool,
    },
    Latency {
        count: usize,
        p50_ms: f64,
        p99_ms: f64,
        cut: bool,
    },
    Failed {
        error: String,
    },
}

impl Report {
    pub(crate) fn rate(count: usize, took: Duration, cut: bool) -> Self {
        Report::Rate { count, seconds: took.as_secs_f64(), cut }
    }

    pub(crate) fn latency(mut ages: Vec<Duration>, cut: bool) -> Self {
        if ages.is_empty() {
            return Report::Failed { error: "no job was handled".into() };
        }
        ages.sort_unstable();
        let percentile = |percent: usize| ages[ages.len() * percent / 100].as_secs_f64() * 1e3;
        Report::Latency { count: ages.len(), p50_ms: percentile(50), p99_ms: percentile(99), cut }
    }

    /// Error with all its causes: a queue's outermost error often says little.
    pub(crate) fn failed(error: &(dyn Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Report::Failed { error: text }
    }

    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Report::Failed { .. })
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text are always JSON")
    }
}
