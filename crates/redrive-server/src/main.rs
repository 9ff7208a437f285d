//! The `redrive` command: reads the arguments, runs the command, turns what went wrong into an exit code.

mod api;
mod audit;
mod backup;
mod bench;
mod chart;
mod cli;
mod config;
mod database;
mod demo;
mod dlq;
mod doctor;
mod endpoints;
mod events;
mod failure;
mod https;
mod label;
mod ledger;
mod migrate;
mod moment;
mod payload;
mod place;
mod policy;
mod publish;
mod queues;
mod replay;
mod scheduler;
mod screen;
mod serve;
mod table;
mod telemetry;
mod tokens;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use crate::failure::Failure;
use crate::screen::Screen;

fn main() -> ExitCode {
    let cli = match config::parse() {
        Ok(cli) => cli,
        Err(failure) => return failure.report(&mut io::stderr().lock()),
    };
    let mut stdout = BufWriter::new(io::stdout().lock());
    let result = cli.run(&mut stdout, Screen::of_stdout());
    // What was written goes out before what went wrong is said.
    let flushed = stdout.flush().map_err(Failure::from);
    match result.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&mut io::stderr().lock()),
    }
}
