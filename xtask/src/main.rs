//! Checks of this repository that cargo itself does not know.
//!
//! `cargo run -p xtask -- <check>`. Exit code 0: the check holds; 1: it found problems; 2: wrong usage.

#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line tool prints

mod conformance;
mod coverage;
mod test_functions;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo run -p xtask -- <check>

checks:
  conformance   every row of docs/conformance.md is well formed and the tests it names exist
  coverage CRATE PERCENT
                its tests run through so many of its lines at least
  programs      what the tests need beside the Rust toolchain is here; installs it where that is allowed";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The parent of xtask/ is the repository, wherever in it the command was called.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["conformance"] => conformance::run(&root),
        ["programs"] => programs(),
        ["coverage", package, least] => match least.parse() {
            Ok(least) => coverage::run(&root, package, least),
            Err(_) => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn programs() -> ExitCode {
    match redrive_servers::install(&redrive_servers::Program::ALL, &mut |line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(missing) => {
            eprintln!("{missing}");
            ExitCode::FAILURE
        }
    }
}
