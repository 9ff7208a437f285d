//! Checks a PostgreSQL server: reachability, durability settings, network, clocks, and the processes on it.

use std::time::Duration;

use redrive::store::postgres::{Diagnostics, ProcessRow};
use redrive::store::{PostgresOptions, PostgresStore, StoreError};

use super::finding::Finding;
use super::in_flight::InFlight;
use crate::database::block_on;
use crate::{format, time_format};

/// Round trip at which a publish waits longer for the network than for the disk.
const SLOW: Duration = Duration::from_millis(20);

/// Clock difference at which times in logs and in the database are hard to compare.
const APART_MS: i64 = 1000;

/// Checks the server; `None` if it cannot be used, else whether a process dispatches.
pub(super) fn check(address: &str, checks: &mut Vec<Finding>) -> Option<bool> {
    let options =
        PostgresOptions { create: false, write_connections: 1, pool: 1, ..PostgresOptions::default() };
    let looked = block_on(async {
        // The error of a failed open names the problem and the remedy.
        let store = match PostgresStore::open(address, options).await {
            Ok(store) => store,
            Err(error) => return Ok(Err(error)),
        };
        Ok(store.diagnostics().await)
    });
    match looked {
        Ok(Ok(diagnostics)) => {
            let in_flight = in_flight(&diagnostics);
            let is_dispatched = !in_flight.dispatchers.is_empty();
            checks.extend(findings(&diagnostics));
            checks.extend(in_flight.findings());
            return Some(is_dispatched);
        }
        Ok(Err(error)) => checks.push(refused(&error)),
        Err(failure) => checks.push(Finding::fail("server", failure.into_message(), "try again")),
    }
    None
}

/// Splits the text of an error into the problem and the remedy.
fn refused(error: &StoreError) -> Finding {
    let text = error.to_string();
    match text.split_once("; ").or_else(|| text.split_once(": ")) {
        Some((found, advice)) => Finding::fail("server", found, advice),
        None => Finding::fail("server", text, "open it with the program itself for details"),
    }
}

fn findings(diagnostics: &Diagnostics) -> [Finding; 4] {
    [
        Finding::ok(
            "server",
            format!("PostgreSQL {}, {}", diagnostics.version, format::bytes(diagnostics.bytes)),
        ),
        Finding::ok("settings", "fsync, full_page_writes and synchronous_commit are on"),
        network(diagnostics),
        clocks(diagnostics),
    ]
}

fn network(diagnostics: &Diagnostics) -> Finding {
    let found = format!("{:.2} ms round trip", diagnostics.round_trip.as_secs_f64() * 1e3);
    if diagnostics.round_trip < SLOW {
        return Finding::ok("network", found);
    }
    Finding::warn(
        "network",
        found,
        "run the program nearer to the server, or publish from several tasks at once",
    )
}

fn clocks(diagnostics: &Diagnostics) -> Finding {
    let found = match diagnostics.clock_offset_ms {
        0 => "the database's clock is this machine's".to_owned(),
        ahead @ 1.. => format!("the database's clock is {ahead} ms ahead of this machine's"),
        behind => format!("the database's clock is {} ms behind this machine's", behind.unsigned_abs()),
    };
    if diagnostics.clock_offset_ms.abs() < APART_MS {
        return Finding::ok("clocks", found);
    }
    Finding::warn(
        "clocks",
        found,
        "harmless for deliveries, which use the database's clock; synchronise both with NTP to compare logs",
    )
}

fn in_flight(diagnostics: &Diagnostics) -> InFlight {
    let alive = diagnostics.processes.iter().filter(|process| process.is_alive);
    let name = |process: &ProcessRow| {
        let since = time_format::age(process.started_at);
        format!("{} (process {}, for {since})", format::one_line(&process.instance), process.pid)
    };
    InFlight {
        check: "dispatchers",
        dispatchers: alive.map(name).collect(),
        running: diagnostics.running,
        abandoned: diagnostics.abandoned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn a_database_clock_that_differs_by_a_second_is_reported() {
        let of = |clock_offset_ms| {
            clocks(&Diagnostics {
                version: "15".to_owned(),
                round_trip: Duration::ZERO,
                clock_offset_ms,
                bytes: 0,
                processes: Vec::new(),
                running: 0,
                abandoned: 0,
            })
        };
        assert_eq!(of(10).verdict, Verdict::Ok);
        let behind = of(-8000);
        assert!(behind.verdict == Verdict::Warn && behind.found.contains("8000 ms behind"), "{behind:?}");
    }
}
