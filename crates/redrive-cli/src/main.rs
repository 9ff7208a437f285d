//! The `redrive` command: reads the arguments, runs the command, turns a failure into an exit code.

mod api;
mod audit;
mod backup;
mod bench;
mod chart;
mod cli;
mod config;
mod confirm;
mod demo;
mod dlq;
mod doctor;
mod endpoints;
mod events;
mod format;
mod history;
mod man;
mod migrate;
mod payload;
mod policy;
mod publish;
mod replay;
mod scheduler;
mod screen;
mod stats;
mod table;
mod time_format;
mod tokens;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use redrive_server::{database, failure};

use crate::cli::Cli;
use crate::failure::Failure;
use crate::screen::Screen;

fn main() -> ExitCode {
    let cli = match config::parse::<Cli>() {
        Ok(cli) => cli,
        Err(failure) => return failure.report(&mut io::stderr().lock()),
    };
    let mut stdout = BufWriter::new(io::stdout().lock());
    let result = cli.run(&mut stdout, Screen::of_stdout());
    // Output precedes the error message.
    let flushed = stdout.flush().map_err(Failure::from);
    match result.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&mut io::stderr().lock()),
    }
}
