//! Repository checks that cargo does not have.
//!
//! `cargo run -p xtask -- <check>`. Exit code 0: the check holds; 1: it found problems; 2: wrong usage.

#![allow(clippy::print_stdout, clippy::print_stderr)] // a command-line tool prints

mod conformance;
mod coverage;
mod openapi;
mod test_functions;
mod words;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo run -p xtask -- <check>

checks:
  conformance   every row of docs/conformance.md is well formed and the tests it names exist
  coverage CRATE PERCENT
                line coverage of its tests is at least this
  openapi       docs/openapi.json breaks no client, and docs/api.html shows it; `openapi write` writes docs/api.html
  programs      the programs that the tests need are installed; installs them where that is allowed
  words [PATH...]
                wording and shape of the sources follow xtask/words.toml; ARCHITECTURE.md names every module";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The parent of xtask/ is the repository, wherever in it the command was called.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["conformance"] => conformance::run(&root),
        ["openapi"] => openapi::run(&root, false),
        ["openapi", "write"] => openapi::run(&root, true),
        ["programs"] => programs(),
        ["words", paths @ ..] => words::run(&root, paths),
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
