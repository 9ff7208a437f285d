//! Draws the delays of a policy as bars in the terminal.

use super::schedule::Row;
use crate::chart::scale::Scale;
use crate::chart::terminal::column;
use crate::format;
use crate::screen::{Screen, Style};

/// One bar per row: solid up to the shortest delay, shaded up to the nominal one, light up to the longest. `omitted` rows are
/// left out between `first` and `last`.
pub(crate) fn bars(first: &[Row], omitted: usize, last: &[Row], screen: Screen) -> Vec<String> {
    let rows = || first.iter().chain(last);
    let longest = rows().map(|row| row.max_ms).max().unwrap_or(0);
    let shortest = rows().map(|row| row.delay_ms).filter(|delay| *delay > 0).min().unwrap_or(0);
    let scale = Scale::of_range(shortest, longest);
    let number = rows().map(|row| row.attempt.to_string().len()).max().unwrap_or(1).max(7);
    let value = rows().map(|row| format::duration(row.delay_ms).chars().count()).max().unwrap_or(0);
    let width = screen.width.saturating_sub(number + value + 4).clamp(8, 72);
    let bar = |row: &Row| {
        let at = |millis| column(scale.position(millis), width);
        let (min, nominal, max) = (at(row.min_ms), at(row.delay_ms), at(row.max_ms));
        let nominal = nominal.max(usize::from(row.delay_ms > 0)).max(min);
        let text = "█".repeat(min) + &"▓".repeat(nominal - min) + &"░".repeat(max.saturating_sub(nominal));
        format!(
            "{:>number$} {} {}",
            row.attempt,
            screen.paint(Style::Quiet, "▏") + &screen.paint(Style::Load, text),
            format::duration(row.delay_ms),
        )
    };
    let kind = if scale.is_log() { " (logarithmic)" } else { "" };
    let mut lines = vec![
        screen.paint(Style::Strong, format!("Delay before each attempt{kind}")),
        screen.paint(Style::Quiet, "█ minimum   ▓ nominal   ░ maximum"),
    ];
    lines.extend(first.iter().map(bar));
    if omitted > 0 {
        lines.push(format!("{:>number$}", "⋮"));
    }
    lines.extend(last.iter().map(bar));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Schedule;
    use super::*;
    use redrive_retry::{Jitter, RetryPolicy};

    const SCREEN: Screen = Screen { width: 40, cuts: true, colour: false };

    fn plot(policy: &RetryPolicy) -> Vec<String> {
        let schedule = Schedule { policy, identity: None };
        bars(&schedule.rows().collect::<Vec<_>>(), 0, &[], SCREEN)
    }

    fn blocks(line: &str) -> [usize; 3] {
        ['█', '▓', '░'].map(|block| line.chars().filter(|c| *c == block).count())
    }

    #[test]
    fn a_bar_shows_minimum_nominal_and_maximum() {
        let lines = plot(&RetryPolicy::webhook());
        // 27 columns are 8.8 s: 7.2 s is 22 of them, 8 s is 25.
        assert_eq!(blocks(&lines[6]), [22, 3, 2], "{lines:#?}");
        assert_eq!(blocks(&lines[2]), [0, 0, 0], "the first attempt has no delay");
        assert!(lines[6].ends_with(" 8s"));
    }

    #[test]
    fn full_jitter_ranges_from_zero_to_the_nominal_delay() {
        let policy = RetryPolicy::webhook().to_builder().jitter(Jitter::Full).build().unwrap();
        assert_eq!(blocks(&plot(&policy)[6])[0], 0);
        assert_eq!(blocks(&plot(&policy)[6])[2], 0);
    }

    #[test]
    fn no_line_is_wider_than_the_screen() {
        let policy = RetryPolicy::webhook().to_builder().max_attempts(20).build().unwrap();
        for line in &plot(&policy)[2..] {
            assert!(line.chars().count() <= SCREEN.width, "{line}");
        }
    }
}
