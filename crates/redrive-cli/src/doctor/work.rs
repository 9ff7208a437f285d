//! Checks the work in a database through the HTTP API: overdue, parked and backlogged deliveries, orphaned subscriptions, failing
//! endpoints, dead letters, the review queue and the write-ahead log.

use redrive_api::client;
use redrive_api::diagnostics::{Diagnostics, WaitingDeliveries};
use redrive_api::endpoints::{CircuitState, DisabledReason, Endpoint};
use redrive_api::page::Page;
use redrive_api::review::{ReviewFilter, ReviewSummary};
use redrive_api::stats::Stats;
use redrive_api::time::Time;

use super::finding::Finding;
use crate::api::{PageArgs, Session, relative};
use crate::failure::Failure;
use crate::{format, time_format};

/// Time in the backlog after which a limit or a receiver needs a person.
const MAX_BACKLOG_AGE_S: u64 = 3600;

/// Size at which the write-ahead log has missed its checkpoints.
const MAX_WAL_BYTES: u64 = 256 << 20;

/// Entries of the review queue that are counted.
const MAX_REVIEW: u32 = 10_000;

/// Names that one finding lists.
const MAX_NAMES: usize = 5;

/// Checks that are made of the diagnostics.
const BY_DIAGNOSTICS: [&str; 3] = ["waiting", "parked", "deliveries"];

/// Reads the diagnostics, of which the checks of the work and `others` are made.
pub(super) async fn diagnostics(
    api: &Session<'_>,
    others: &[&'static str],
    checks: &mut Vec<Finding>,
) -> Option<Diagnostics> {
    read(&[others, &BY_DIAGNOSTICS].concat(), api.diagnostics().await, checks)
}

/// Checks the work. `found` are the diagnostics, if they could be read.
pub(super) async fn check(
    api: &Session<'_>,
    found: Option<&Diagnostics>,
    is_dispatched: bool,
    checks: &mut Vec<Finding>,
) {
    let flag = &api.flag;
    if let Some(found) = found {
        checks.extend([overdue(found, is_dispatched), waiting(&found.waiting), orphans(&found.waiting)]);
    }
    let stats = read(&["dead letters", "log"], api.stats().await, checks);
    let listed = PageArgs::first(MAX_REVIEW)
        .collect(async |page| api.review().list(&ReviewFilter::default(), page).await)
        .await;
    let in_review = read(&["review"], listed, checks);
    if let Some(stats) = stats {
        checks.push(dead(&stats, in_review.as_ref(), flag));
        checks.push(log(&stats));
    }
    let all = PageArgs::ALL.collect(async |page| api.endpoints().list(page).await).await;
    if let Some(all) = read(&["endpoints"], all, checks) {
        let unreadable = found.map_or(0, |found| found.unreadable_endpoints);
        checks.extend(endpoints(&all.data, flag, unreadable, api.is_database()));
    }
    checks.extend(in_review.map(|in_review| review(&in_review, flag)));
}

/// The response; without one, the findings of the checks that it serves: a scheduler's port has only the review queue.
fn read<T>(names: &[&'static str], answer: client::Result<T>, checks: &mut Vec<Finding>) -> Option<T> {
    match answer {
        Ok(found) => return Some(found),
        Err(error) if error.problem().is_some_and(|problem| problem.status == 404) => {
            checks.extend(names.iter().map(|name| Finding::not_served(name)));
        }
        Err(error) => {
            let said = Failure::from(error).into_message();
            let advice = "repeat the command; the log of the server says more";
            checks.extend(names.iter().map(|name| Finding::fail(name, said.as_str(), advice)));
        }
    }
    None
}

fn overdue(found: &Diagnostics, is_dispatched: bool) -> Finding {
    if found.overdue == 0 {
        return Finding::ok("waiting", "nothing is overdue");
    }
    let overdue = format!("{} due for more than a minute", format::counted(found.overdue, "event"));
    let advice = if is_dispatched {
        "the program does not keep up: look for slow handlers, raise in_flight, or on PostgreSQL start one more process"
    } else {
        "start the program that handles them"
    };
    Finding::act("waiting", overdue, advice)
}

fn waiting(found: &[WaitingDeliveries]) -> Finding {
    let delayed = |of_one: &&WaitingDeliveries| of_one.parked + of_one.backlogged > 0;
    let delayed: Vec<&WaitingDeliveries> = found.iter().filter(delayed).collect();
    if delayed.is_empty() {
        return Finding::ok("parked", "no delivery is parked or in a backlog");
    }
    let about = |of_one: &&WaitingDeliveries| {
        let part = |number: u64, what: &str, oldest: Option<Time>| {
            let age = oldest.map_or_else(String::new, |at| {
                format!(" (the oldest published {} ago)", time_format::age(at.0))
            });
            (number > 0).then(|| format!("{} {what}{age}", format::count(number)))
        };
        let parts = [
            part(of_one.parked, "parked", of_one.oldest_parked_at),
            part(of_one.backlogged, "in the backlog", of_one.oldest_backlogged_at),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("{}: {}", of_one.subscription, parts.join(", "))
    };
    let text = listed(delayed.iter().map(about), "; ");
    let is_old = |at: Time| time_format::now().since(at.0).as_secs() > MAX_BACKLOG_AGE_S;
    if delayed.iter().filter_map(|of_one| of_one.oldest_backlogged_at).any(is_old) {
        let advice = "the receiver is slower than its events come: raise its concurrency or rate limit, or ask its owner";
        return Finding::act("parked", text, advice);
    }
    Finding::warn("parked", text, "they go on by themselves when the circuit closes or a limit frees")
}

fn orphans(found: &[WaitingDeliveries]) -> Finding {
    let orphans: Vec<String> = found
        .iter()
        .filter(|of_one| !of_one.on_record)
        .map(|of_one| {
            let open = of_one.due + of_one.parked + of_one.retrying + of_one.backlogged;
            format!("{} for {:?}", format::count(open), of_one.subscription)
        })
        .collect();
    if orphans.is_empty() {
        return Finding::ok("deliveries", "every open delivery has its subscription");
    }
    Finding::act(
        "deliveries",
        format!("{}, which is not a subscription on record", listed(orphans.into_iter(), ", ")),
        "start the program that subscribes under that name before a bus dispatches them: otherwise they become dead letters with the reason no_subscription",
    )
}

/// Checks the dead letters that are not messages in review, which have a check of their own.
fn dead(stats: &Stats, in_review: Option<&Page<ReviewSummary>>, flag: &str) -> Finding {
    let (in_review, has_more) =
        in_review.map_or((0, false), |page| (page.data.len() as u64, page.next.is_some()));
    let dead = stats.dlq.saturating_sub(in_review);
    if dead == 0 {
        return Finding::ok("dead letters", "none");
    }
    let rest = if has_more { ", further messages in review included" } else { "" };
    let caution = if in_review > 0 { "; a purge deletes messages in review too" } else { "" };
    Finding::act(
        "dead letters",
        format!("{}{rest}", format::counted(dead, "event")),
        format!("group them by error, then redrive or purge them: redrive dlq groups{flag}{caution}"),
    )
}

/// Checks the write-ahead log of a file. It is empty after a checkpoint, and on PostgreSQL, which keeps its own.
fn log(stats: &Stats) -> Finding {
    let found = format::bytes(stats.wal_bytes);
    match stats.wal_bytes {
        0 => Finding::ok("log", "nothing waits for a checkpoint"),
        1..MAX_WAL_BYTES => Finding::ok("log", found),
        _ => Finding::act("log", found, "a long-running reader blocks its checkpoints: find it and end it"),
    }
}

/// Checks the endpoints that can be read, and counts the others.
fn endpoints(all: &[Endpoint], flag: &str, unreadable: u64, is_database: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if unreadable == 0 || !all.is_empty() {
        findings.push(readable_endpoints(all, flag));
    }
    if unreadable > 0 {
        let found = format!("{} cannot be checked without the key", format::counted(unreadable, "endpoint"));
        let advice = if is_database {
            "use --server or --secret-key-file"
        } else {
            "start the server with the key, or remove them"
        };
        findings.push(Finding::act("endpoints", found, advice));
    }
    findings
}

fn readable_endpoints(all: &[Endpoint], flag: &str) -> Finding {
    let failing: Vec<(String, bool)> = all.iter().filter_map(problem).collect();
    if failing.is_empty() {
        return Finding::ok(
            "endpoints",
            format!("{}, none is failing", format::counted(all.len() as u64, "endpoint")),
        );
    }
    let text = listed(failing.iter().map(|(text, _)| text.clone()), "; ");
    if failing.iter().any(|(_, needs_person)| *needs_person) {
        let advice = format!(
            "look at the responses: redrive endpoints attempts ID{flag}; when the receiver works again: redrive replay endpoint ID{flag}"
        );
        return Finding::act("endpoints", text, advice);
    }
    Finding::warn("endpoints", text, "deliveries go on by themselves when the receiver works again")
}

/// Describes the problem of an endpoint, and says whether a person has to act. An endpoint that a person disabled is as it should be.
fn problem(endpoint: &Endpoint) -> Option<(String, bool)> {
    let (what, needs_person) = match (&endpoint.disabled, &endpoint.state) {
        (Some(disabled), _) if disabled.reason == DisabledReason::ByHand => return None,
        (Some(disabled), _) => {
            (format!("disabled {} ({})", relative(disabled.since), disabled.reason.as_str()), true)
        }
        (None, state) => match (state.failing_since, state.circuit.as_ref()) {
            (Some(since), _) => (format!("failing for {}", time_format::age(since.0)), true),
            (None, Some(circuit)) if *circuit != CircuitState::Closed => {
                (format!("circuit {}", circuit.as_str().replace('_', " ")), false)
            }
            _ => return None,
        },
    };
    let description = match endpoint.description.as_str() {
        "" => String::new(),
        description => format!(" ({description})"),
    };
    Some((format!("{}{description} {what}", endpoint.id), needs_person))
}

fn review(in_review: &Page<ReviewSummary>, flag: &str) -> Finding {
    let tasks = &in_review.data;
    let Some(oldest) = tasks.iter().map(|task| task.reviewed_at.0).min() else {
        return Finding::ok("review", "The review queue is empty");
    };
    let at_least = if in_review.next.is_some() { "at least " } else { "" };
    let number = format::counted(tasks.len() as u64, "message");
    Finding::act(
        "review",
        format!("{at_least}{number} in review, the oldest for {}", time_format::age(oldest)),
        format!("republish or discard them: redrive scheduler review list{flag}"),
    )
}

/// Joins the first texts and says how many there are beyond them.
fn listed(texts: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    let more = texts.len().saturating_sub(MAX_NAMES);
    let mut listed: Vec<String> = texts.take(MAX_NAMES).collect();
    if more > 0 {
        listed.push(format!("and {} more", format::count(more as u64)));
    }
    listed.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn a_large_log_needs_a_person() {
        let of = |wal_bytes| {
            let (pending, processing, done, dlq, open_deliveries, in_flight, file_bytes) = Default::default();
            log(&Stats { pending, processing, done, dlq, open_deliveries, in_flight, file_bytes, wal_bytes })
                .verdict
        };
        assert_eq!([of(0), of(1 << 20), of(MAX_WAL_BYTES)], [Verdict::Ok, Verdict::Ok, Verdict::Act]);
    }
}
