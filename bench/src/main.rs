//! Side-by-side measurements: every figure is a median of interleaved rounds in one run, beside the bare work and
//! beside the peer. `make bench`, or `cargo run --release -p redrive-bench -- retry [--json]`.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line tool prints

mod measure;
mod retry;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let names: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|argument| *argument != "--json").collect();
    let report = match names.as_slice() {
        [] | ["retry"] => retry::run(),
        _ => {
            eprintln!("usage: redrive-bench [retry] [--json]");
            return ExitCode::from(2);
        }
    };
    if json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    ExitCode::SUCCESS
}
