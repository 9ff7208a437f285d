//! Prints reports as a table or as JSON.

use std::io::{self, Write};

use crate::report::Report;

/// Maximum sentences of a fault; the rest is counted.
const MAX_SENTENCES: usize = 20;

/// Prints one line per fault, then the violations and failures.
pub fn print(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    let heading = ["fault", "times", "", "acknowledged", "lost", "duplicates", "seconds", "seed", "detail"];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(reports.iter().map(|report| {
        [
            report.fault.clone(),
            grouped(report.rounds),
            report.unit.clone(),
            grouped(report.acknowledged),
            grouped(report.lost),
            grouped(report.duplicates),
            grouped(report.seconds),
            report.seed.to_string(),
            report.detail.clone(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let filling = " ".repeat(widths[column] - cell.chars().count());
            // Numbers are right-aligned.
            let (left, right) = if matches!(column, 1 | 3..=7) {
                (filling.as_str(), cell.as_str())
            } else {
                (cell.as_str(), filling.as_str())
            };
            line.extend([left, right, "  "]);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    for note in reports.iter().flat_map(|report| &report.notes) {
        writeln!(out, "  {note}")?;
    }
    for report in reports.iter().filter(|report| !report.is_clean()) {
        writeln!(out, "\n{}, seed {}:", report.fault, report.seed)?;
        let complaints = report.complaints();
        for sentence in complaints.iter().take(MAX_SENTENCES) {
            writeln!(out, "  {sentence}")?;
        }
        if let Some(more) = complaints.len().checked_sub(MAX_SENTENCES).filter(|more| *more > 0) {
            writeln!(out, "  and {more} more")?;
        }
    }
    Ok(())
}

/// All results as one JSON array.
pub fn print_json(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, reports)?;
    writeln!(out)
}

/// 1000000 as 1,000,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
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
    fn columns_line_up_and_what_must_not_be_is_said() {
        let clean = Report { fault: "kills".into(), rounds: 2000, unit: "kills".into(), ..Report::default() };
        let broken =
            Report { fault: "power".into(), lost: 1, violations: vec!["x is lost".into()], ..clean.clone() };
        let mut text = Vec::new();
        print(&mut text, &[clean, broken]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("fault  times"), "{text}");
        assert!(lines[1].starts_with("kills  2,000  kills             0     0"), "{text}");
        assert_eq!(lines[4..], ["power, seed 0:", "  x is lost"]);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
