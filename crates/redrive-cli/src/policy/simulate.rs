//! `redrive policy simulate`: simulates a policy with many events, an outage and a limited capacity.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use redrive_retry::duration::{format_duration, parse_duration};
use redrive_retry::{Jitter, RetryPolicy};
use serde::Serialize;

use super::conclusion::conclude;
use super::description::{self, describe};
use super::policy_args::{PolicyArgs, with_presets};
use super::simulate_picture::draw;
use super::simulate_plot::plot;
use super::simulation::{Comparison, Simulation, SimulationResult};
use super::write_picture;
use crate::api::write_json;
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};
use crate::time_format::millis;

const EXAMPLES: &str = "\
Examples:
  redrive policy simulate
  redrive policy simulate --preset webhook --max-attempts 8 --jitter full --svg herd.svg
  redrive policy simulate --events 100000 --outage 10m --capacity 500 --max-attempts 14 --cap 5m
  redrive policy simulate --jitter none --json | jq '.with_jitter.dead, .without_jitter.dead'

All events make their first attempt at once. The destination is down for a while and then accepts a limited number of \
attempts per second. The policy runs with and without jitter, in virtual time. The result shows the load over time, the time \
of the last delivery, and the number of dead events.

The model: an attempt takes no time, every failure is transient, and a destination at its capacity refuses at once (a \
token bucket that holds a tenth of a second). Every delay is the one that the policy gives in production for this \
seed. Circuit breakers and retry budgets are not simulated: the result is the load that they would limit.";

/// Simulate a policy with many events, an outage and a limited capacity
#[derive(Debug, Args)]
#[command(after_help = with_presets(EXAMPLES))]
pub(crate) struct Simulate {
    #[command(flatten)]
    policy: PolicyArgs,
    /// Number of events that make their first attempt at once
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Simulation")]
    events: u64,
    /// Duration of the outage
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, allow_hyphen_values = true, help_heading = "Simulation")]
    outage: Duration,
    /// Attempts per second that the destination accepts afterwards
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Simulation")]
    capacity: u64,
    /// Seed of the jitter; one seed always gives the same result
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Simulation")]
    seed: u64,
    /// Print one JSON object with both results and their series
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Also write an SVG picture to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document<'a> {
    events: u64,
    outage_ms: u64,
    capacity_per_second: u64,
    seed: u64,
    policy: &'a RetryPolicy,
    conclusion: &'a str,
    with_jitter: RunDocument<'a>,
    without_jitter: RunDocument<'a>,
}

#[derive(Serialize)]
struct RunDocument<'a> {
    jitter: Jitter,
    #[serde(flatten)]
    result: &'a SimulationResult,
}

impl Simulate {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let simulation = Simulation {
            policy: self.policy.policy()?,
            events: self.events,
            outage: self.outage,
            capacity_per_second: self.capacity,
            seed: self.seed,
        };
        let both = simulation.compare().map_err(|error| Failure::Usage(error.to_string()))?;
        let conclusion = conclude(&simulation, &both);
        if let Some(path) = &self.svg {
            write_picture(path, &draw(&simulation, &both, &self.command()))?;
        }
        if self.json {
            let document = Document {
                events: simulation.events,
                outage_ms: millis(simulation.outage),
                capacity_per_second: simulation.capacity_per_second,
                seed: simulation.seed,
                policy: &simulation.policy,
                conclusion: &conclusion,
                with_jitter: RunDocument { jitter: both.jitter, result: &both.with_jitter },
                without_jitter: RunDocument { jitter: Jitter::None, result: &both.without_jitter },
            };
            return write_json(out, &document);
        }
        let down = match millis(self.outage) {
            0 => "accepts".to_owned(),
            outage => format!("is down for {}, then accepts", format::duration(outage)),
        };
        let headline = format!(
            "{} at once; the destination {down} {} per second.",
            format::counted(self.events, "event"),
            format::counted(self.capacity, "attempt")
        );
        writeln!(out, "{}", screen.paint(Style::Strong, screen.wrap(&headline)))?;
        let policy = format!("{}: {}.", self.policy.name(), describe(&simulation.policy));
        writeln!(out, "{}\n", screen.wrap(&policy))?;
        for line in table(&both, screen) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        for line in plot(&simulation, &both, screen) {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "\n{}", screen.paint(Style::Strong, screen.wrap(&conclusion)))?;
        Ok(())
    }

    /// The command as typed.
    fn command(&self) -> String {
        let seed = match self.seed {
            0 => String::new(),
            seed => format!(" --seed {seed}"),
        };
        format!(
            "redrive policy simulate {} --events {} --outage {} --capacity {}{seed}",
            self.policy.flags(),
            self.events,
            format_duration(self.outage).replace(' ', ""),
            self.capacity,
        )
    }
}

/// Formats both results side by side, in 58 columns.
fn table(both: &Comparison, screen: Screen) -> Vec<String> {
    type Cell = fn(&SimulationResult) -> String;
    let rows: [(&str, Cell); 10] = [
        ("events delivered", |r| format::count(r.delivered)),
        ("events dead", |r| format::count(r.dead)),
        ("attempts", |r| format::count(r.attempts)),
        ("attempts over capacity", |r| format::count(r.rejected)),
        ("peak of retries per second", |r| format::count(r.peak_per_second)),
        ("peak after the outage", |r| format::count(r.peak_after_outage_per_second)),
        ("half delivered by", |r| time(r.p50_ms)),
        ("95% delivered by", |r| time(r.p95_ms)),
        ("last delivered at", |r| time(r.last_delivery_ms)),
        ("all settled at", |r| format::duration(r.settled_ms)),
    ];
    let with = description::jitter(both.jitter) + if both.assumed { " instead" } else { "" };
    let header = ["no jitter", &with];
    let mut lines = vec![screen.paint(Style::Quiet, format!("{:26}{:>11}{:>21}", "", header[0], header[1]))];
    for (index, (name, cell)) in rows.into_iter().enumerate() {
        let (without, with) = (cell(&both.without_jitter), cell(&both.with_jitter));
        let style = match index {
            0 => Some(Style::Good),
            1 => Some(Style::Bad),
            _ => None,
        };
        let numbers = format!("{without:>11}{with:>21}");
        let numbers = style.map_or(numbers.clone(), |style| screen.paint(style, &numbers));
        lines.push(format!("{name:26}{numbers}"));
    }
    lines
}

fn time(at_ms: Option<u64>) -> String {
    at_ms.map_or_else(|| "never".to_owned(), format::duration)
}
