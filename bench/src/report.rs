//! Report of measurements with a baseline, line by line.

use std::fmt::Write;

use serde_json::{Value, json};

/// One line: Redrive in every round, and its baseline.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) key: &'static str,
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    /// Empty without a baseline.
    pub(crate) baseline: Vec<f64>,
    pub(crate) goal: &'static str,
}

/// All lines of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) lines: Vec<Line>,
    pub(crate) note: String,
}

/// Median; the upper of two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Line {
    /// A line without samples.
    pub(crate) fn new(key: &'static str, what: &'static str, unit: &'static str, goal: &'static str) -> Self {
        Line { key, what, unit, ours: Vec::new(), baseline: Vec::new(), goal }
    }

    /// A line with one sample.
    pub(crate) fn once(self, ours: f64, baseline: Option<f64>) -> Self {
        Line { ours: vec![ours], baseline: baseline.into_iter().collect(), ..self }
    }

    /// Median of the ratios of each round.
    fn ratio(&self) -> Option<f64> {
        let ratios: Vec<f64> =
            self.ours.iter().zip(&self.baseline).map(|(ours, baseline)| ours / baseline).collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    fn baseline(&self) -> Option<f64> {
        (!self.baseline.is_empty()).then(|| median(self.baseline.clone()))
    }
}

impl Report {
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:<66}{:>10}{:>10}{:>8}\n", "", "Redrive", "baseline", "ratio");
        for line in &self.lines {
            let baseline = line.baseline().map(|baseline| format!("{baseline:.0}")).unwrap_or_default();
            let ratio = line.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            let goal = if line.goal.is_empty() { String::new() } else { format!(" ({})", line.goal) };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<66}{:>10.0}{baseline:>10}{ratio:>8}   {}{goal}",
                line.what,
                median(line.ours.clone()),
                line.unit,
            );
        }
        let _ = writeln!(text, "\n{}", self.note);
        text
    }

    pub(crate) fn json(&self) -> Value {
        let lines = self.lines.iter().map(|line| {
            let value = json!({"redrive": median(line.ours.clone()), "baseline": line.baseline(), "ratio": line.ratio(),
                "rounds": line.ours, "baseline_rounds": line.baseline});
            (line.key.to_owned(), value)
        });
        Value::Object(lines.collect())
    }
}
