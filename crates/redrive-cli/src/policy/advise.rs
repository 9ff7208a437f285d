//! `redrive policy advise`: recommends a policy from recorded attempts, and replays the history with it.

use std::io::{self, Write};

use clap::Args;
use redrive_retry::audit::AuditEvent;
use redrive_retry::duration::format_duration;
use redrive_retry::{RetryPolicy, Timestamp};
use serde::Serialize;

use super::description::describe;
use super::history_replay::{Outcome, Replay, quantile, share};
use super::outages::outages;
use super::recommendation::{Recommendation, recommend};
use crate::api::write_json;
use crate::audit::source::{LeftOut, Recorded, Source};
use crate::failure::Failure;
use crate::format;
use crate::history::works::{Collected, End, Work, Works};
use crate::screen::{Screen, Style};
use crate::table::Table;
use crate::time_format;

/// Recommend attempts, base delay and longest delay from recorded attempts
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive policy advise --db redrive.db
  redrive policy advise --db redrive.db --subscription billing --target 99.9%
  redrive policy advise audit.jsonl --since 7d --json | jq .recommendation.policy

Without a file, it reads the attempts that a database has recorded; handled events count within their retention. From a file it reads the \
decisions of guarded calls (retry_decision). Nothing is changed.

The history tells how many attempts each failed event, delivery or call needed, how long its target failed, and when it recovered. The \
recommendation is the smallest number of attempts that reaches the target success rate with delays that fit these times. Then the \
history is replayed with the recorded and with the recommended policy.

The model: an attempt fails until the recorded recovery and succeeds afterwards; more or fewer retries do not change the recovery. \
Permanent errors are left out, because no policy helps against them.")]
pub(crate) struct Advise {
    #[command(flatten)]
    source: Source,
    /// Share of the failed events, deliveries or calls that shall succeed, such as 99% or 99.9%
    #[arg(long, value_name = "PERCENT", default_value = "99%", value_parser = percent)]
    target: f64,
    /// Only this subscription, or category and operation of guarded calls
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    /// Only what was recorded after this instant or within this time, such as 7d
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    since: Option<Timestamp>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    number
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "use a percentage above 0 and up to 100, such as 99%".to_owned())
}

/// The recorded attempts, what they show, and the recommended policy.
#[derive(Serialize)]
struct Report {
    history: HistoryReport,
    by_attempt: Vec<ByAttempt>,
    /// Time from the first failed attempt to the success.
    time_to_success: Times,
    outages: Outages,
    target: f64,
    /// Share of the failed works that any policy can reach: a recovery was recorded.
    reachable: Option<f64>,
    recorded: Option<RecordedPolicy>,
    recommendation: Option<Replayed>,
    /// Lines that could not be read.
    unreadable: u64,
}

#[derive(Serialize)]
struct HistoryReport {
    /// Events and deliveries that succeeded with their first attempt; unknown for one subscription and for guarded calls.
    succeeded_at_once: Option<u64>,
    /// Events, deliveries or calls with at least one failed attempt.
    failed_once: u64,
    succeeded: u64,
    dead: u64,
    permanent: u64,
    open: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

/// Works by the number of their attempts.
#[derive(Serialize)]
struct ByAttempt {
    attempt: u64,
    made: u64,
    succeeded: u64,
    /// Share of these attempts that succeeded.
    success_rate: f64,
}

#[derive(Serialize)]
struct Times {
    median_ms: u64,
    p90_ms: u64,
    p99_ms: u64,
    longest_ms: u64,
}

impl Times {
    fn of(sorted: &[u64]) -> Self {
        Times {
            median_ms: quantile(sorted, 0.5),
            p90_ms: quantile(sorted, 0.9),
            p99_ms: quantile(sorted, 0.99),
            longest_ms: quantile(sorted, 1.0),
        }
    }
}

#[derive(Serialize)]
struct Outages {
    count: u64,
    /// Targets whose last attempt failed.
    not_over: u64,
    #[serde(flatten)]
    lengths: Times,
}

/// The history replayed with the policies that were in force.
#[derive(Serialize)]
struct RecordedPolicy {
    /// `None` if there were several.
    policy: Option<RetryPolicy>,
    #[serde(flatten)]
    outcome: Outcome,
}

/// A policy, and the history replayed with it.
#[derive(Serialize)]
struct Replayed {
    policy: RetryPolicy,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Advise {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let (report, left_out) = self.report()?;
        if self.json {
            return write_json(out, &report);
        }
        report.print(out, screen)?;
        Ok(left_out.print(out, screen)?)
    }

    fn report(&self) -> Result<(Report, LeftOut), Failure> {
        let mut works = Works::since(self.since);
        let left_out = self.source.visit_recorded(|recorded| match recorded {
            Recorded::Attempt(attempt) => works.attempt(attempt),
            Recorded::Event(event) => match *event {
                AuditEvent::RetryDecision(decision) => works.decision(&decision),
                _ => Ok(()),
            },
        })?;
        let mut history = works.collect();
        if let Some(name) = &self.subscription {
            history.works.retain(|work| work.target == *name);
        }
        if history.works.is_empty() {
            let none = "no failed attempt is recorded: there is nothing to learn from; name another database with --db, or a file \
                        with decisions";
            let note = left_out.note().map(|note| format!(" ({note})")).unwrap_or_default();
            return Err(Failure::Failed(format!("{none}{note}")));
        }
        let at_once = if self.subscription.is_none() && self.since.is_none() {
            self.source.succeeded_at_once()?
        } else {
            None
        };
        Ok((Report::new(&history, at_once, self.target, left_out.unreadable), left_out))
    }
}

impl Report {
    fn new(history: &Collected, at_once: Option<u64>, target: f64, unreadable: u64) -> Self {
        let replay = Replay::new(history);
        let recommended = recommend(&replay, target);
        let replayed = |policy: RetryPolicy| Replayed { outcome: replay.run(&policy), policy };
        let recorded = replay
            .run_recorded()
            .map(|outcome| RecordedPolicy { policy: recorded_policy(&history.works), outcome });
        let reachable = recommended.as_ref().map(|found| found.reachable);
        // A recorded policy that reaches the target, or all that can be reached, stays.
        let suffices = |recorded: &RecordedPolicy| {
            let rate = recorded.outcome.success_rate;
            rate >= target || reachable.is_some_and(|reachable| rate >= reachable)
        };
        let keep =
            recorded.as_ref().filter(|recorded| suffices(recorded)).and_then(|found| found.policy.clone());
        let policy = keep.or(recommended.map(|Recommendation { policy, .. }| policy));
        let (lengths, not_over) = outages(history);
        Report {
            history: HistoryReport::new(&history.works, at_once),
            by_attempt: by_attempt(&history.works, at_once.unwrap_or(0)),
            time_to_success: Times::of(&times_to_success(&history.works)),
            outages: Outages { count: lengths.len() as u64, not_over, lengths: Times::of(&lengths) },
            target,
            reachable,
            recorded,
            recommendation: policy.map(replayed),
            unreadable,
        }
    }
}

impl HistoryReport {
    fn new(works: &[Work], succeeded_at_once: Option<u64>) -> Self {
        let count = |matches: fn(&End) -> bool| works.iter().filter(|work| matches(&work.end)).count() as u64;
        let times = || works.iter().flat_map(|work| &work.failures).copied();
        HistoryReport {
            succeeded_at_once,
            failed_once: works.len() as u64,
            succeeded: count(|end| matches!(end, End::Succeeded(_))),
            dead: count(|end| *end == End::Dead),
            permanent: count(|end| *end == End::Permanent),
            open: count(|end| *end == End::Open),
            first: times().min(),
            last: times().max(),
        }
    }
}

fn by_attempt(works: &[Work], at_once: u64) -> Vec<ByAttempt> {
    /// More attempts are summed up in the totals only.
    const MAX_ROWS: usize = 100;
    let (mut made, mut succeeded) = (vec![at_once], vec![at_once]);
    for work in works {
        let attempts = usize::try_from(work.attempts()).unwrap_or(MAX_ROWS).min(MAX_ROWS);
        if made.len() < attempts {
            made.resize(attempts, 0);
            succeeded.resize(attempts, 0);
        }
        made[..attempts].iter_mut().for_each(|count| *count += 1);
        if matches!(work.end, End::Succeeded(_)) {
            succeeded[attempts - 1] += 1;
        }
    }
    let rows = made.into_iter().zip(succeeded).zip(1..);
    rows.map(|((made, succeeded), attempt)| ByAttempt {
        attempt,
        made,
        succeeded,
        success_rate: share(succeeded, made),
    })
    .collect()
}

fn times_to_success(works: &[Work]) -> Vec<u64> {
    let time = |work: &Work| match (work.end, work.failures.first()) {
        (End::Succeeded(at), Some(first)) => Some(time_format::millis(at.since(*first))),
        _ => None,
    };
    let mut times: Vec<u64> = works.iter().filter_map(time).collect();
    times.sort_unstable();
    times
}

/// The recorded policy, if there was only one.
fn recorded_policy(works: &[Work]) -> Option<RetryPolicy> {
    let mut policies = works.iter().filter_map(|work| work.policy);
    let (max_attempts, backoff) = policies.next()?;
    if policies.any(|other| other != (max_attempts, backoff)) {
        return None;
    }
    RetryPolicy::builder().max_attempts(max_attempts).backoff(backoff).build().ok()
}

impl Report {
    fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        writeln!(out, "{}\n", screen.wrap(&self.history.sentence()))?;
        let row = |row: &ByAttempt| {
            let rate = format!("{:.1} %", row.success_rate * 100.0);
            [row.attempt.to_string(), format::count(row.made), format::count(row.succeeded), rate]
        };
        let table =
            Table::new(["attempt", "made", "succeeded", "success rate"], self.by_attempt.iter().map(row));
        table.right(&[0, 1, 2, 3]).print(out, screen)?;
        writeln!(out, "\n{}", screen.wrap(&self.times()))?;
        self.print_recommendation(out, screen)
    }

    fn times(&self) -> String {
        let short = format::short_duration;
        let (success, outages) = (&self.time_to_success, &self.outages);
        let not_over = match outages.not_over {
            0 => String::new(),
            open => format!(" {} not recovered yet.", format::counted(open, "target")),
        };
        format!(
            "After a failure, half succeed within {}, 90 % within {}, 99 % within {}. {}: median {}, 90 % up to {}, longest {}.{not_over}",
            short(success.median_ms),
            short(success.p90_ms),
            short(success.p99_ms),
            format::counted(outages.count, "outage"),
            short(outages.lengths.median_ms),
            short(outages.lengths.p90_ms),
            short(outages.lengths.longest_ms),
        )
    }

    fn print_recommendation(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        let target = format!("{} %", (self.target * 1e5).round() / 1e3);
        let Some(recommended) = &self.recommendation else {
            let none = "No recovery is recorded, so no policy can be recommended: look at the errors first (redrive dlq groups).";
            return writeln!(out, "\n{}", screen.wrap(none));
        };
        if let Some(reachable) = self.reachable.filter(|reachable| *reachable < self.target) {
            let most = format!(
                "At most {:.1} % can succeed: no recovery is recorded for the rest. Look at their errors (redrive dlq groups).",
                reachable * 100.0
            );
            writeln!(out, "\n{}", screen.wrap(&most))?;
        }
        let policy = &recommended.policy;
        let keep = self.recorded.as_ref().is_some_and(|recorded| recorded.policy.as_ref() == Some(policy));
        let headline = if keep {
            format!("Keep the recorded policy for {target}: {}.", describe(policy))
        } else {
            format!("Recommended for {target}: {}.", describe(policy))
        };
        writeln!(out, "\n{}\n", screen.paint(Style::Strong, screen.wrap(&headline)))?;
        let recorded = self.recorded.as_ref().filter(|_| !keep);
        if recorded.is_some_and(|recorded| recorded.policy.is_none()) {
            let several =
                "Several policies are recorded: choose a policy for each target, with --subscription.";
            writeln!(out, "{}\n", screen.wrap(several))?;
        }
        let recorded = recorded.map(|recorded| ("recorded", &recorded.outcome));
        let replays: Vec<_> = recorded.into_iter().chain([("recommended", &recommended.outcome)]).collect();
        let row = |(name, outcome): &(&str, &Outcome)| {
            [
                (*name).to_owned(),
                format!("{} ({:.1} %)", format::count(outcome.succeeded), outcome.success_rate * 100.0),
                format::count(outcome.dead),
                format::count(outcome.attempts),
                format::short_duration(outcome.median_ms),
                format::short_duration(outcome.p90_ms),
            ]
        };
        let heading = ["this history with", "succeeded", "dead", "attempts", "median time", "90 % within"];
        Table::new(heading, replays.iter().map(row)).right(&[1, 2, 3, 4, 5]).print(out, screen)?;
        let duration = |delay| format_duration(delay).replace(' ', "");
        let flags = format!(
            "--max-attempts {} --base {} --cap {}",
            policy.max_attempts(),
            duration(policy.base_delay()),
            duration(policy.max_delay())
        );
        writeln!(out, "\n{}", screen.paint(Style::Quiet, format!("Delays: redrive policy explain {flags}")))
    }
}

impl HistoryReport {
    fn sentence(&self) -> String {
        let mut text = format!("{} failed at least once", format::count(self.failed_once));
        if let Some(at_once) = self.succeeded_at_once {
            let all = at_once + self.failed_once;
            text = format!("{text} of {}", format::count(all));
        }
        if let (Some(first), Some(last)) = (self.first, self.last) {
            text = format!("{text}, between {first} and {last}");
        }
        format!(
            "{text}: {} succeeded, {} dead after all attempts, {} with a permanent error, {} not finished.",
            format::count(self.succeeded),
            format::count(self.dead),
            format::count(self.permanent),
            format::count(self.open)
        )
    }
}
