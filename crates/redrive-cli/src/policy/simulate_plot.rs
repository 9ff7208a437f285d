//! Plots a simulation in the terminal: attempts over time, with and without jitter, on the same axes.

use super::simulation::{Comparison, Simulation, SimulationResult};

use super::description;
use crate::chart::terminal::{area, squeeze, time_labels};
use crate::format;
use crate::screen::{Screen, Style};
use crate::time_format::millis;

const HEIGHT_LINES: usize = 6;
/// Label of the line below each plot; also the width of the axis numbers.
const DELIVERED: &str = "delivered";

/// Both plots, one below the other, with a shared axis.
pub(crate) fn plot(simulation: &Simulation, both: &Comparison, screen: Screen) -> Vec<String> {
    let columns = screen.width - DELIVERED.len() - 2;
    let (without, each) = squeeze(&both.without_jitter.series.attempts, columns);
    let (with, _) = squeeze(&both.with_jitter.series.attempts, columns);
    let column_ms = both.with_jitter.series.bucket_ms * each as u64;
    let max = without.iter().chain(&with).copied().max().unwrap_or(0).max(1);
    let outage_ms = millis(simulation.outage);
    let axis: String =
        (0..with.len() as u64).map(|column| if column * column_ms < outage_ms { '━' } else { '─' }).collect();
    let jitter = description::jitter(both.jitter) + if both.assumed { " instead" } else { "" };
    let runs = [("no jitter".to_owned(), &without, &both.without_jitter), (jitter, &with, &both.with_jitter)];
    let mut lines = Vec::new();
    for (name, attempts, result) in runs {
        let title = format!("Attempts per {}, {name}", format::duration(result.series.bucket_ms));
        lines.push(screen.paint(Style::Strong, title));
        for (row, blocks) in area(attempts, max, HEIGHT_LINES).into_iter().enumerate() {
            let number = if row == 0 { format::count(max) } else { String::new() };
            let gutter = format!("{number:>width$} ", width = DELIVERED.len());
            lines.push(screen.paint(Style::Quiet, gutter + "│") + &screen.paint(Style::Load, blocks));
        }
        lines.push(screen.paint(Style::Quiet, format!("{:>width$} └{axis}", 0, width = DELIVERED.len())));
        let share = delivered_so_far(result, each);
        let blocks = if result.delivered == 0 {
            screen.paint(Style::Bad, "none")
        } else {
            screen.paint(Style::Good, area(&share, simulation.events, 1).concat())
        };
        lines.push(screen.paint(Style::Quiet, format!("{DELIVERED}  ")) + &blocks);
        lines.push(String::new());
    }
    let gutter = " ".repeat(DELIVERED.len() + 2);
    lines.pop();
    lines.push(gutter + &time_labels(with.len(), column_ms * with.len() as u64));
    if outage_ms > 0 {
        let legend = format!("━ the destination is down for {}", format::duration(outage_ms));
        lines.push(screen.paint(Style::Quiet, legend));
    }
    lines
}

/// Delivered events by the end of each column.
fn delivered_so_far(result: &SimulationResult, each: usize) -> Vec<u64> {
    let delivered = result.series.delivered.chunks(each.max(1));
    delivered
        .scan(0, |so_far, chunk| {
            *so_far += chunk.iter().sum::<u64>();
            Some(*so_far)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::RetryPolicy;
    use std::time::Duration;

    #[test]
    fn both_plots_fit_the_screen_and_share_their_axis() {
        let simulation = Simulation {
            policy: RetryPolicy::webhook(),
            events: 1000,
            outage: Duration::from_secs(5),
            capacity_per_second: 100,
            seed: 0,
        };
        let both = simulation.compare().unwrap();
        for width in [40, 80, 160] {
            let screen = Screen { width, cuts: true, colour: false };
            let lines = plot(&simulation, &both, screen);
            assert!(lines.iter().all(|line| line.chars().count() <= width + 2), "{lines:#?}");
            let axes: Vec<_> = lines.iter().filter(|line| line.contains('└')).collect();
            assert_eq!(axes.len(), 2);
            assert_eq!(axes[0], axes[1]);
            let down = axes[0].chars().filter(|c| *c == '━').count();
            let up = axes[0].chars().filter(|c| *c == '─').count();
            assert!(down > 0 && up > down, "5 of about 16 seconds: {down} and {up}");
        }
    }
}
