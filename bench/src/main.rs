//! Benchmarks with a baseline in the same run. `make bench`, or `cargo run --release -p redrive-bench -- retry [--json]`.
//!
//! - `retry`: cost of the retry core. Every figure is a median of interleaved rounds in one run, with the bare call and a
//!   peer as baselines.
//! - `bus`: the event bus over large files, compared with an empty file and the specified goals. `redrive bench` measures a
//!   small file.
//! - `postgres`: the event bus on PostgreSQL, compared with hand-written SQL on the same server.
//! - `scheduler`: failed messages from one queue to another, compared with a bare loop; their lateness; a million waiting
//!   tasks.
//! - `retry-queue`: the usual queries on the specified view of failed messages, over 100,000 of them.
//! - `webhooks`: deliveries compared with a bare client, requests with a bare handler, and one silent endpoint among a
//!   hundred.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line tool prints

mod bus;
mod measure;
mod postgres;
mod report;
mod retry;
mod retry_queue;
mod scheduler;
mod webhooks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "redrive-bench", about = "Side-by-side measurements", version)]
struct Cli {
    /// Benchmark to run; the retry core by default
    #[command(subcommand)]
    what: Option<What>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The cost of the retry core
    Retry,
    /// The event bus over large files: dead letters, recovery, a file that grows, memory
    Bus(bus::Bus),
    /// The event bus on PostgreSQL, compared with hand-written SQL
    Postgres(postgres::Postgres),
    /// The retry scheduler, compared with a loop that stores nothing
    Scheduler(scheduler::Scheduler),
    /// The usual queries on the view `retry_queue` of PostgreSQL
    RetryQueue(retry_queue::RetryQueue),
    /// Webhooks and the server, compared with a bare client and a bare handler
    Webhooks(webhooks::Webhooks),
    /// The bare handler that `webhooks` compares with
    #[command(hide = true)]
    BareIngest(webhooks::BareIngest),
    /// The process whose memory `bus memory` reads
    #[command(hide = true)]
    Resident(bus::Resident),
}

fn main() -> ExitCode {
    let Cli { what, json } = Cli::parse();
    let text = match what.unwrap_or(What::Retry) {
        What::Retry => {
            let report = retry::run();
            Ok(if json { format!("{}\n", report.json()) } else { report.table() })
        }
        What::Bus(bus) => {
            bus.run().map(|report| if json { format!("{}\n", report.json()) } else { report.table() })
        }
        What::Postgres(postgres) => {
            postgres.run().map(|report| if json { format!("{}\n", report.json()) } else { report.table() })
        }
        What::Scheduler(scheduler) => {
            scheduler.run().map(|report| if json { format!("{}\n", report.json()) } else { report.table() })
        }
        What::RetryQueue(queue) => {
            queue.run().map(|report| if json { format!("{}\n", report.json()) } else { report.table() })
        }
        What::Webhooks(webhooks) => {
            webhooks.run().map(|report| if json { format!("{}\n", report.json()) } else { report.table() })
        }
        What::BareIngest(bare) => bare.run(),
        What::Resident(resident) => resident.run(),
    };
    match text {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the measurement failed: {error}");
            ExitCode::FAILURE
        }
    }
}
