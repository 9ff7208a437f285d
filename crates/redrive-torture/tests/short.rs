//! Runs every fault for a few seconds, and the planted bugs if they are compiled. `make torture` runs longer.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::process::Command;

use redrive_torture::broker::Trouble;
use redrive_torture::chaos::Storm;
use redrive_torture::report::Report;

fn try_for(fault: &str, seconds: u32) -> Report {
    let output = Command::new(env!("CARGO_BIN_EXE_redrive-torture"))
        .args(["--json", fault, "--seconds", &seconds.to_string()])
        .output()
        .unwrap();
    let reports: Vec<Report> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let report = reports.into_iter().next().unwrap();
    assert!(report.is_clean(), "{report:#?}");
    assert!(report.rounds > 0, "{report:#?}");
    report
}

#[test]
fn random_kills() {
    assert!(try_for("kills", 10).acknowledged > 0);
}

#[test]
fn crash_points() {
    try_for("crash-points", 10);
}

#[test]
fn io_errors() {
    try_for("io-errors", 8);
}

#[test]
fn a_full_disk() {
    try_for("full-disk", 6);
}

#[test]
fn power_loss() {
    try_for("power-loss", 10);
}

#[test]
fn the_model_of_the_bus() {
    try_for("model", 6);
}

#[test]
fn the_walk_of_the_store() {
    try_for("walk", 4);
}

#[test]
fn a_soak() {
    try_for("soak", 8);
}

/// Runs several faults in sequence, in a common time.
fn try_all(faults: &str, seconds: u32, count: usize) {
    let output = Command::new(env!("CARGO_BIN_EXE_redrive-torture"))
        .args(["--json", faults, "--seconds", &seconds.to_string()])
        .output()
        .unwrap();
    let reports: Vec<Report> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(reports.len(), count, "{reports:#?}");
    for report in reports {
        assert!(report.is_clean() && report.acknowledged > 0, "{report:#?}");
    }
}

#[test]
fn chaos_around_a_server() {
    try_all("chaos", 18, Storm::ALL.len());
}

#[test]
fn chaos_around_a_broker() {
    try_all("broker", 21, Trouble::ALL.len());
}

/// A harness that does not find planted bugs proves nothing.
#[cfg(feature = "planted")]
#[test]
fn every_planted_bug_is_caught() {
    let report = try_for("planted", 25);
    assert_eq!(report.notes.len(), redrive_torture::planted::BUGS.len(), "{report:#?}");
}
