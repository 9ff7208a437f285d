//! Times contenders in many short, interleaved rounds, so that the noise of the machine hits all alike.

use std::fmt::Write;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::report::median;

/// Rounds of each contender.
const ROUNDS: usize = 61;

/// One thing to be timed: a name and a closure that does it `n` times.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    pub(crate) run: Box<dyn FnMut(u64) + 'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: &'static str, run: impl FnMut(u64) + 'a) -> Self {
        Contender { name, run: Box::new(run) }
    }
}

/// Result of one group; the first contender is the baseline.
pub(crate) struct Group {
    title: &'static str,
    rows: Vec<(&'static str, f64)>,
}

/// Times a group: `calls` calls per round, interleaved rounds, medians in nanoseconds per call.
pub(crate) fn group(title: &'static str, calls: u64, mut contenders: Vec<Contender<'_>>) -> Group {
    let mut times: Vec<Vec<f64>> = contenders.iter().map(|_| Vec::with_capacity(ROUNDS)).collect();
    for contender in &mut contenders {
        (contender.run)(calls); // warm up
    }
    for _ in 0..ROUNDS {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let began = Instant::now();
            (contender.run)(calls);
            #[allow(clippy::cast_precision_loss)]
            times.push(began.elapsed().as_nanos() as f64 / calls as f64);
        }
    }
    let rows =
        contenders.iter().zip(times).map(|(contender, times)| (contender.name, median(times))).collect();
    Group { title, rows }
}

/// All groups of a run.
pub(crate) struct Report {
    pub(crate) groups: Vec<Group>,
}

impl Report {
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for group in &self.groups {
            let base = group.rows.first().map_or(f64::NAN, |(_, nanos)| *nanos);
            let _ = writeln!(text, "{}", group.title); // writing to a String cannot fail
            for (name, nanos) in &group.rows {
                let _ = writeln!(text, "  {name:<44} {nanos:>9.1} ns   {:>6.2} ×", nanos / base);
            }
            text.push('\n');
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let mut groups = Map::new();
        for group in &self.groups {
            let rows: Map<String, Value> = group
                .rows
                .iter()
                .map(|(name, nanos)| ((*name).to_owned(), json!((nanos * 10.0).round() / 10.0)))
                .collect();
            groups.insert(group.title.to_owned(), Value::Object(rows));
        }
        json!({ "nanoseconds_per_call": groups })
    }
}
