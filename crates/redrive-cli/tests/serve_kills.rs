//! Kills the server under load, with publishers, consumers and receivers in other processes. The long form is
//! `redrive-torture server`.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::Path;

use redrive_torture::options::Options;
use redrive_torture::server;

const PROGRAM: &str = env!("CARGO_BIN_EXE_redrive");

fn options() -> Options {
    Options { seconds: 30, seed: 20_261_116, rounds: Some(12) }
}

#[test]
fn a_server_killed_repeatedly_loses_nothing() {
    let report = server::run_with(&options(), Path::new(PROGRAM), None);
    assert!(report.is_clean(), "{:#?}", report.complaints());
    assert!(report.acknowledged > 5, "{report:?}");
}

#[test]
fn a_server_on_postgresql_killed_repeatedly_loses_nothing() {
    let schema = redrive_servers::Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
    let separator = if schema.url().contains('?') { '&' } else { '?' };
    let db = format!("{}{separator}schema={}", schema.url(), schema.name());
    let report = server::run_with(&options(), Path::new(PROGRAM), Some(&db));
    assert!(report.is_clean(), "{:#?}", report.complaints());
    assert!(report.acknowledged > 5, "{report:?}");
}
