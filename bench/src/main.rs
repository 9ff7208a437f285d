//! Side-by-side measurements. `make bench`, or `cargo run --release -p redrive-bench -- retry [--json]`.
//!
//! - `retry`: the cost of the retry core. Every figure is a median of interleaved rounds in one run, beside the bare work
//!   and beside the peer.
//! - `bus`: the event bus over large files, beside an empty one and beside the specified targets. What it does on a small
//!   one is `redrive bench`.
//! - `postgres`: the event bus on PostgreSQL, beside the same work by hand on the same server.
//! - `scheduler`: failed messages from one queue to another, beside a bare loop; how late they are; a million of them waiting.
//! - `webhooks`: deliveries beside the bare client, requests beside a bare handler, and one dead endpoint among a hundred.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line tool prints

mod bus;
mod measure;
mod postgres;
mod report;
mod retry;
mod scheduler;
mod webhooks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "redrive-bench", about = "Side-by-side measurements", version)]
struct Cli {
    /// What to measure; the retry core if nothing is said
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
    /// The event bus on PostgreSQL, beside the same work by hand
    Postgres(postgres::Postgres),
    /// The retry scheduler, beside a loop that keeps nothing
    Scheduler(scheduler::Scheduler),
    /// Webhooks and the server, beside the bare client and a bare handler
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
