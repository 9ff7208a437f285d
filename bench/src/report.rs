//! What was measured beside something else, line by line.

use std::fmt::Write;

use serde_json::{Value, json};

/// One line: ours in every round, and what it is compared with.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) key: &'static str,
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    /// Empty if it is compared with nothing.
    pub(crate) beside: Vec<f64>,
    pub(crate) goal: &'static str,
}

/// All that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) lines: Vec<Line>,
    pub(crate) note: String,
}

/// The one in the middle; the upper of two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Line {
    /// Nothing is measured yet.
    pub(crate) fn new(key: &'static str, what: &'static str, unit: &'static str, goal: &'static str) -> Self {
        Line { key, what, unit, ours: Vec::new(), beside: Vec::new(), goal }
    }

    /// It was measured once.
    pub(crate) fn once(self, ours: f64, beside: Option<f64>) -> Self {
        Line { ours: vec![ours], beside: beside.into_iter().collect(), ..self }
    }

    /// The median of those of each round.
    fn ratio(&self) -> Option<f64> {
        let ratios: Vec<f64> =
            self.ours.iter().zip(&self.beside).map(|(ours, beside)| ours / beside).collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    fn beside(&self) -> Option<f64> {
        (!self.beside.is_empty()).then(|| median(self.beside.clone()))
    }
}

impl Report {
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:<66}{:>10}{:>10}{:>8}\n", "", "Redrive", "beside", "ratio");
        for line in &self.lines {
            let beside = line.beside().map(|beside| format!("{beside:.0}")).unwrap_or_default();
            let ratio = line.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            let goal = if line.goal.is_empty() { String::new() } else { format!(" ({})", line.goal) };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<66}{:>10.0}{beside:>10}{ratio:>8}   {}{goal}",
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
            let value = json!({"redrive": median(line.ours.clone()), "beside": line.beside(), "ratio": line.ratio(),
                "rounds": line.ours, "rounds_beside": line.beside});
            (line.key.to_owned(), value)
        });
        Value::Object(lines.collect())
    }
}
