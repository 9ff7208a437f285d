//! Figures with their goals, as a table and as JSON.

use std::fmt::Write;

use serde_json::{Map, Value, json};

#[derive(Copy, Clone, Debug)]
pub(super) enum Unit {
    Millis,
    PerSecond,
    Ratio,
    Mebibytes,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::Millis if value < 10.0 => format!("{value:.2} ms"),
            Unit::Millis => format!("{value:.0} ms"),
            Unit::PerSecond => format!("{value:.0} /s"),
            Unit::Ratio => format!("{value:.2} ×"),
            Unit::Mebibytes => format!("{value:.0} MiB"),
        }
    }
}

/// Goal of a figure.
#[derive(Copy, Clone, Debug)]
pub(super) enum Goal {
    /// Specified limit, to be beaten ten times.
    Within(f64),
    /// Own goal: below this.
    Below(f64),
    /// Own goal: at least this.
    AtLeast(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Goal::Within(limit) | Goal::Below(limit) => value < limit,
            Goal::AtLeast(limit) => value >= limit,
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Goal::Within(limit) | Goal::Below(limit) => format!("< {}", unit.show(limit)),
            Goal::AtLeast(limit) => format!("≥ {}", unit.show(limit)),
        }
    }

    fn verdict(self, value: f64) -> String {
        match self {
            _ if !self.is_met(value) => "MISS".to_owned(),
            Goal::Within(limit) if value * 10.0 <= limit => {
                format!("PASS, {:.0} times better", (limit / value).floor())
            }
            Goal::Within(limit) => format!("PASS, but only {:.1} times better", limit / value),
            _ => "PASS".to_owned(),
        }
    }
}

pub(super) struct Figure {
    /// JSON key, with the unit in its name.
    key: String,
    what: String,
    value: f64,
    unit: Unit,
    goal: Option<Goal>,
    note: String,
}

impl Figure {
    pub(super) fn new(key: impl Into<String>, what: impl Into<String>, value: f64, unit: Unit) -> Self {
        Figure { key: key.into(), what: what.into(), value, unit, goal: None, note: String::new() }
    }

    pub(super) fn goal(self, goal: Goal) -> Self {
        Figure { goal: Some(goal), ..self }
    }

    pub(super) fn note(self, note: impl Into<String>) -> Self {
        Figure { note: note.into(), ..self }
    }
}

/// All figures of a run, in order.
#[derive(Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
}

impl Report {
    pub(super) fn add(&mut self, figures: Vec<Figure>) {
        self.figures.extend(figures);
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<62}{:>12}{:>12}", "", "measured", "goal");
        for Figure { what, value, unit, goal, note, .. } in &self.figures {
            let (goal, verdict) =
                goal.map(|goal| (goal.show(*unit), goal.verdict(*value))).unwrap_or_default();
            let remark: Vec<&str> =
                [verdict.as_str(), note].into_iter().filter(|part| !part.is_empty()).collect();
            let line = format!("{what:<62}{:>12}{goal:>12}  {}", unit.show(*value), remark.join("; "));
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push_str(
            "\nFiles are in the page cache. Times are medians. The specification asks for < 50 ms for a query of 10,000 dead\n\
             events and for < 500 ms for the recovery of 100 events, to be beaten ten times; larger sizes have the same goal\n\
             where the size should not matter.\n",
        );
        text
    }

    /// Figures by name, and their goals under `goals`.
    pub(crate) fn json(&self) -> Value {
        let round = |value: f64| json!((value * 1000.0).round() / 1000.0);
        let mut object: Map<String, Value> =
            self.figures.iter().map(|figure| (figure.key.clone(), round(figure.value))).collect();
        let goal = |figure: &Figure| {
            let goal = figure.goal?;
            let shown = json!({ "goal": goal.show(figure.unit), "met": goal.is_met(figure.value) });
            Some((figure.key.clone(), shown))
        };
        object.insert("goals".to_owned(), Value::Object(self.figures.iter().filter_map(goal).collect()));
        Value::Object(object)
    }
}

/// Formats a count: `1,000,000`.
pub(super) fn count(n: u32) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_can_be_read() {
        assert_eq!([0, 100, 1000, 10_000_000].map(count), ["0", "100", "1,000", "10,000,000"]);
    }

    #[test]
    fn the_goal_decides_the_verdict() {
        assert_eq!(Goal::Within(50.0).verdict(0.5), "PASS, 100 times better");
        assert_eq!(Goal::Within(50.0).verdict(10.0), "PASS, but only 5.0 times better");
        assert_eq!(Goal::Within(50.0).verdict(50.0), "MISS");
        assert_eq!(Goal::AtLeast(0.8).verdict(0.8), "PASS");
        assert_eq!(Goal::Below(128.0).verdict(200.0), "MISS");
    }
}
