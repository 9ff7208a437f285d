//! Report as a table and as JSON.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::cost::Cost;
use super::measure::{Measure, Sample, Size};
use crate::report::median;

/// Goal: share of the baseline.
const AIM: f64 = 0.6;

/// One round of one measurement.
struct Line {
    is_held: bool,
    measure: Measure,
    ours: Sample,
    raw: Option<Sample>,
}

/// All rounds of a run.
pub(crate) struct Report {
    version: String,
    size: Size,
    rounds: u32,
    lines: Vec<Line>,
}

impl Report {
    pub(super) fn new(version: String, size: Size, rounds: u32) -> Self {
        Report { version, size, rounds, lines: Vec::new() }
    }

    pub(super) fn add(&mut self, is_held: bool, measure: Measure, ours: Sample, raw: Option<Sample>) {
        self.lines.push(Line { is_held, measure, ours, raw });
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for is_held in [false, true] {
            let figures: Vec<Figure> = self.figures(is_held).collect();
            if figures.is_empty() {
                continue;
            }
            let title = if is_held { "with an open transaction" } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{title:<52}{:>10}{:>10}{:>9}", "Redrive", "raw SQL", "ratio");
            for figure in figures {
                let _ = writeln!(text, "{}", figure.line());
            }
            text.push('\n');
        }
        let Size { events, connections, .. } = self.size;
        let _ = writeln!(
            text,
            "PostgreSQL {}, fsync and synchronous_commit on; {events} events, {connections} connections; medians of {} alternating rounds.\n\
             Raw SQL: no leases, no retries, no dead letters. Handling ends when everything is settled and closed.",
            self.version, self.rounds
        );
        text
    }

    pub(crate) fn json(&self) -> Value {
        let part = |is_held| -> Map<String, Value> {
            self.figures(is_held).map(|figure| (figure.key.clone(), figure.json())).collect()
        };
        json!({
            "postgres": self.version,
            "events": self.size.events,
            "connections": self.size.connections,
            "rounds": self.rounds,
            "alone": part(false),
            "with_open_transaction": part(true),
        })
    }

    fn figures(&self, is_held: bool) -> impl Iterator<Item = Figure> + '_ {
        Measure::ALL.iter().flat_map(move |&measure| {
            let lines: Vec<&Line> =
                self.lines.iter().filter(|line| line.is_held == is_held && line.measure == measure).collect();
            figures(measure, &lines)
        })
    }
}

/// A median of each side, and the median of the ratios of the rounds.
struct Figure {
    key: String,
    what: String,
    ours: f64,
    raw: Option<f64>,
    ratio: Option<f64>,
    /// Whether the ratio has a goal.
    has_aim: bool,
    digits: usize,
}

impl Figure {
    fn line(&self) -> String {
        let Figure { what, ours, digits, .. } = self;
        let raw = self.raw.map(|raw| format!("{raw:.digits$}")).unwrap_or_default();
        let ratio = self.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let verdict = match self.ratio {
            Some(ratio) if self.has_aim && ratio < AIM => format!("MISS: the goal is {AIM}"),
            _ => String::new(),
        };
        let ours = format!("{ours:.digits$}");
        format!("{what:<52}{ours:>10}{raw:>10}{ratio:>9}  {verdict}").trim_end().to_owned()
    }

    fn json(&self) -> Value {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        json!({ "redrive": round(self.ours), "raw_sql": self.raw.map(round), "ratio": self.ratio.map(round) })
    }
}

fn figures(measure: Measure, lines: &[&Line]) -> Vec<Figure> {
    if lines.is_empty() {
        return Vec::new();
    }
    let figure = |key: &str, what: &str, digits, has_aim, part: &dyn Fn(&Sample) -> Option<f64>| {
        let ours = lines.iter().filter_map(|line| part(&line.ours)).collect();
        let raw: Vec<f64> = lines.iter().filter_map(|line| line.raw.as_ref()).filter_map(part).collect();
        let ratios: Vec<f64> = lines
            .iter()
            .filter_map(|line| Some(part(&line.ours)? / part(line.raw.as_ref()?)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        let some = |values: Vec<f64>| if values.is_empty() { None } else { Some(median(values)) };
        Figure {
            key: key.to_owned(),
            what: what.to_owned(),
            ours: median(ours),
            raw: some(raw),
            ratio: some(ratios),
            has_aim,
            digits,
        }
    };
    let rate = |sample: &Sample| match sample {
        Sample::Rate(rate) | Sample::Costed(rate, _) => Some(*rate),
        Sample::Latency { .. } => None,
    };
    let cost = |part: fn(&Cost) -> f64| {
        move |sample: &Sample| match sample {
            Sample::Costed(_, cost) => Some(part(cost)),
            _ => None,
        }
    };
    let key = measure.key();
    match measure {
        Measure::Latency => {
            vec![
                figure("latency_p50_ms", "publish to handler at 200/s, p50, ms", 2, false, &|sample| {
                    match sample {
                        Sample::Latency { p50, .. } => Some(*p50),
                        _ => None,
                    }
                }),
                figure("latency_p99_ms", "publish to handler at 200/s, p99, ms", 2, false, &|sample| {
                    match sample {
                        Sample::Latency { p99, .. } => Some(*p99),
                        _ => None,
                    }
                }),
            ]
        }
        Measure::Cycle => vec![
            figure("cycle", &format!("{}, /s", measure.title()), 0, false, &rate),
            figure("cycle_log_bytes", "  WAL bytes per event", 0, false, &cost(|cost| cost.log)),
            figure("cycle_died", "  dead row versions per event", 2, false, &cost(|cost| cost.died)),
            figure(
                "cycle_hot",
                "  HOT updates among them, pruned without vacuum",
                2,
                false,
                &cost(|cost| cost.hot),
            ),
            figure("cycle_dead", "  dead rows left per event", 2, false, &cost(|cost| cost.dead)),
        ],
        _ => vec![figure(key, &format!("{}, /s", measure.title()), 0, true, &rate)],
    }
}
