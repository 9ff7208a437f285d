//! Sets up logging to standard error, as text or JSON, and passes spans to the telemetry layer.

mod fields;
mod lines;
mod summary;

use std::io;

use clap::ValueEnum;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use self::lines::Lines;
use self::summary::{RetrySummary, Summaries};
use crate::telemetry::EventSpans;

/// Format of log lines.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Log format of failed attempts: one entry each, or summaries.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogRetries {
    /// One warning for each failed attempt
    Each,
    /// One warning for each endpoint or subscription and minute, with the number of its failed attempts
    Summary,
}

/// Keeps the log complete: dropped at the end of the service, it writes the last summary.
#[derive(Debug)]
#[must_use = "dropping it ends the summaries"]
pub(crate) struct Log {
    _summaries: Option<Summaries>,
}

/// Filter without `RUST_LOG`. The scheduler itself logs the state of its broker connections, so the chatter of the NATS client is off.
const DEFAULT_FILTER: &str = "info,async_nats=off";

/// Crate whose log lines are dropped whatever `RUST_LOG` says: the RabbitMQ client logs returned messages with their bodies.
const SUPPRESSED_CRATE: &str = "lapin";

/// Whether log lines with this target may be written at all.
fn is_loggable(target: &str) -> bool {
    target.strip_prefix(SUPPRESSED_CRATE).is_none_or(|rest| !rest.is_empty() && !rest.starts_with("::"))
}

/// Installs the global subscriber: log lines filtered by `RUST_LOG`, and `spans` for a collector.
pub(crate) fn start(format: LogFormat, retries: LogRetries, spans: Option<EventSpans>) -> Log {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let is_loggable = filter_fn(|line| is_loggable(line.target()));
    let has_colour = io::IsTerminal::is_terminal(&io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    let summary = (retries == LogRetries::Summary).then(RetrySummary::default);
    let lines = Lines { format, has_colour, summary: summary.clone(), writer: io::stderr };
    // Fails if a subscriber is already installed, which then stays.
    let _ = match spans {
        None => tracing_subscriber::registry().with(lines).with(filter).with(is_loggable).try_init(),
        // Separate filters: `RUST_LOG` must not drop spans.
        Some(spans) => tracing_subscriber::registry()
            .with(lines.with_filter(filter.and(is_loggable)))
            .with(spans.with_filter(EventSpans::filter()))
            .try_init(),
    };
    Log { _summaries: summary.map(RetrySummary::every_minute) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rabbitmq_client_is_suppressed() {
        for (target, may) in [
            ("lapin", false),
            ("lapin::returned_messages", false),
            ("lapins", true),
            ("redrive::scheduler", true),
        ] {
            assert_eq!(is_loggable(target), may, "{target}");
        }
    }
}
