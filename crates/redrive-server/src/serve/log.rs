//! Log lines on standard error, for people or for machines.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::telemetry::EventSpans;

/// How log lines are written.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// What is written if nobody says otherwise. How the connections to a broker do is said by the scheduler itself, once, and not by
/// its client for every channel.
const USUAL: &str = "info,async_nats=off";

/// Never heard, whatever `RUST_LOG` says: the client of RabbitMQ writes messages that come back with their bodies and headers.
const SILENT: &str = "lapin";

/// Whether lines of this origin may be written at all.
fn may_speak(target: &str) -> bool {
    target.strip_prefix(SILENT).is_none_or(|rest| !rest.is_empty() && !rest.starts_with("::"))
}

/// From now on. What is written is said by `RUST_LOG`; without it, what matters. Spans go to a collector, if there is one.
pub(crate) fn start(format: LogFormat, spans: Option<EventSpans>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL));
    let may_speak = filter_fn(|line| may_speak(line.target()));
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => {
            let colour = io::IsTerminal::is_terminal(&io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colour).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // Started once in a process; if somebody else was first, their lines are as good.
    let _ = match spans {
        None => tracing_subscriber::registry().with(lines).with(filter).with(may_speak).try_init(),
        // Each hears of what it wants: which lines are written says nothing about spans.
        Some(spans) => tracing_subscriber::registry()
            .with(lines.with_filter(filter.and(may_speak)))
            .with(spans.with_filter(EventSpans::filter()))
            .try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_the_broker_is_silent_and_nobody_else() {
        for (target, may) in [
            ("lapin", false),
            ("lapin::returned_messages", false),
            ("lapins", true),
            ("redrive::scheduler", true),
        ] {
            assert_eq!(may_speak(target), may, "{target}");
        }
    }
}
