//! A PostgreSQL server: can it be reached, does it keep what it confirms, and how is the work in it.

use std::time::Duration;

use redrive::postgres::Survey;
use redrive::{PostgresOptions, PostgresStore, StoreError};

use super::finding::Finding;
use crate::database::block_on;
use crate::{label, moment};

/// What has been due for longer than this is not just about to begin.
const OVERDUE: Duration = Duration::from_secs(60);

/// Slower than this, and every publish waits for the network more than for the disk.
const SLOW: Duration = Duration::from_millis(20);

/// Times in logs of this machine and times in the database are hard to compare beyond this.
const APART_MS: i64 = 1000;

pub(super) fn check(address: &str, flag: &str, checks: &mut Vec<Finding>) {
    let options = PostgresOptions { create: false, lanes: 1, pool: 1, ..PostgresOptions::default() };
    let looked = block_on(async {
        // What is wrong with the server is said by whoever opens it, with what to do.
        let store = match PostgresStore::open(address, options).await {
            Ok(store) => store,
            Err(error) => return Ok(Err(error)),
        };
        Ok(store.survey(OVERDUE).await)
    });
    match looked {
        Ok(Ok(survey)) => checks.extend(findings(&survey, flag)),
        Ok(Err(error)) => checks.push(refused(&error)),
        Err(failure) => checks.push(Finding::fail("server", format!("{failure:?}"), "try again")),
    }
}

/// The error's own text says what to do after its first part.
fn refused(error: &StoreError) -> Finding {
    let text = error.to_string();
    match text.split_once("; ").or_else(|| text.split_once(": ")) {
        Some((found, advice)) => Finding::fail("server", found, advice),
        None => Finding::fail("server", text, "open it with the program itself to see more"),
    }
}

fn findings(survey: &Survey, flag: &str) -> Vec<Finding> {
    vec![
        Finding::ok("server", format!("PostgreSQL {}, {}", survey.version, label::bytes(survey.bytes))),
        Finding::ok("settings", "fsync, full_page_writes and synchronous_commit are on"),
        network(survey),
        clocks(survey),
        processes(survey),
        running(survey),
        overdue(survey),
        orphans(survey),
        dead(survey, flag),
    ]
}

fn network(survey: &Survey) -> Finding {
    let found = format!("{:.2} ms for a question and its answer", survey.round_trip.as_secs_f64() * 1e3);
    if survey.round_trip < SLOW {
        return Finding::ok("network", found);
    }
    Finding::warn(
        "network",
        found,
        "run the program nearer to the server, or publish from several tasks at once",
    )
}

fn clocks(survey: &Survey) -> Finding {
    let found = match survey.ahead_by {
        0 => "the database's clock is this machine's".to_owned(),
        ahead @ 1.. => format!("the database's clock is {ahead} ms ahead of this machine's"),
        behind => format!("the database's clock is {} ms behind this machine's", behind.unsigned_abs()),
    };
    if survey.ahead_by.abs() < APART_MS {
        return Finding::ok("clocks", found);
    }
    Finding::warn(
        "clocks",
        found,
        "nothing goes wrong by it: only the database's counts; for logs, keep both by NTP",
    )
}

fn processes(survey: &Survey) -> Finding {
    let now = moment::now();
    let alive: Vec<String> = survey
        .processes
        .iter()
        .filter(|process| process.is_alive)
        .map(|process| {
            let since = moment::age(process.started_at, now);
            format!("{} (process {}, for {since})", label::one_line(&process.instance), process.pid)
        })
        .collect();
    if alive.is_empty() {
        return Finding::ok("dispatchers", "no process dispatches at the moment");
    }
    Finding::ok("dispatchers", alive.join(", "))
}

fn running(survey: &Survey) -> Finding {
    if survey.cut_off == 0 {
        return Finding::ok("running", format!("{} being handled", label::counted(survey.running, "event")));
    }
    let found = format!("{} in the hands of a process that is gone", label::counted(survey.cut_off, "event"));
    let advice = if survey.processes.iter().any(|process| process.is_alive) {
        "those that live take them over within a third of their lease"
    } else {
        "start the program that handles them: its start takes them back and charges an attempt"
    };
    Finding::warn("running", found, advice)
}

fn overdue(survey: &Survey) -> Finding {
    if survey.overdue == 0 {
        return Finding::ok("waiting", "nothing is overdue");
    }
    let found = format!("{} due for more than a minute", label::counted(survey.overdue, "event"));
    let advice = if survey.processes.iter().any(|process| process.is_alive) {
        "the programs do not keep up: start one more, look for slow handlers, or raise in_flight"
    } else {
        "start the program that handles them"
    };
    Finding::warn("waiting", found, advice)
}

fn orphans(survey: &Survey) -> Finding {
    if survey.orphans.is_empty() {
        return Finding::ok("deliveries", "every open one has its subscription");
    }
    let list: Vec<String> = survey
        .orphans
        .iter()
        .map(|(name, number)| format!("{} for {name:?}", label::count(*number)))
        .collect();
    Finding::warn(
        "deliveries",
        format!("{}, and no such subscription is on record", list.join(", ")),
        "subscribe under that name again, and they are handled; they wait until then",
    )
}

fn dead(survey: &Survey, flag: &str) -> Finding {
    match survey.dead {
        0 => Finding::ok("dead letters", "none"),
        dead => Finding::warn(
            "dead letters",
            label::counted(dead, "event"),
            format!("see what killed them: redrive dlq groups{flag}"),
        ),
    }
}
