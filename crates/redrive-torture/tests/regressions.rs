//! Repeats bugs that the harness has found in the product, with the point or the seed that showed them.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::process::Command;

use redrive_torture::report::Report;

fn again(arguments: &[&str]) -> Report {
    let output = Command::new(env!("CARGO_BIN_EXE_redrive-torture"))
        .arg("--json")
        .args(arguments)
        .args(["--seconds", "60"])
        .output()
        .unwrap();
    let reports: Vec<Report> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let report = reports.into_iter().next().unwrap();
    assert!(report.is_clean(), "{report:#?}");
    report
}

/// A publisher that waited for the end of an event never learned that the store had stopped.
#[test]
fn a_waiting_publisher_learns_that_the_store_has_stopped() {
    for number in [30, 100, 150] {
        let report = again(&["io-errors", "--at", &format!("work: pwrite64 number {number}")]);
        assert!(report.detail.contains("stopped"), "{report:#?}");
    }
}

/// A sync of the log that failed in a checkpoint was warned about, and the store went on.
#[test]
fn a_failed_sync_in_a_checkpoint_stops_the_store() {
    let report = again(&["io-errors", "--at", "checkpoint: fsync number 19"]);
    assert!(report.detail.contains("stopped"), "{report:#?}");
}

/// A sync of the log that failed while the file was closed was not reported, and the log was deleted.
#[test]
fn a_failed_sync_at_close_is_reported() {
    for number in [15, 16, 17] {
        let report = again(&["io-errors", "--at", &format!("work: fsync number {number}")]);
        assert!(report.detail.contains("stopped"), "{report:#?}");
        assert!(!report.detail.contains("unnoticed"), "{report:#?}");
    }
}

/// An event that died again during a redrive of all was redriven twice.
#[test]
fn an_event_is_redriven_once() {
    assert!(again(&["model", "--seed", "17", "--rounds", "1"]).rounds > 0);
}
