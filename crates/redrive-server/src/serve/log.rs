//! Log lines on standard error, for people or for machines.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How log lines are written.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// From now on. What is written is said by `RUST_LOG`; without it, what matters.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Started once in a process; if somebody else was first, their lines are as good.
    let _ = match format {
        LogFormat::Text => {
            let colour = io::IsTerminal::is_terminal(&io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colour).try_init()
        }
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}
