//! Draws a simulation as SVG: two panels on the same axes, without and with jitter. Bars are attempts, the line is the number
//! of delivered events.

use super::simulation::{Comparison, Simulation, SimulationResult};
use redrive_retry::RetryPolicy;

use super::conclusion::conclude;
use super::description::{self, waits};
use crate::chart::scale::{Scale, count_step, multiples};
use crate::chart::svg::{Anchor, Picture, WIDTH, count, text_width, wrap, wrap_command};
use crate::format::{self, capitalised};
use crate::time_format::millis;

const MARGIN: f64 = 28.0;
const LEFT: f64 = 76.0;
/// Right end of the axis; labels are beyond it.
const RIGHT: f64 = WIDTH - 132.0;
const PANEL_HEIGHT: f64 = 170.0;
/// Space above the highest bar for its label.
const HEADROOM: f64 = 24.0;

/// Draws both results; `command` is printed below them.
pub(crate) fn draw(simulation: &Simulation, both: &Comparison, command: &str) -> String {
    let events = format::counted(simulation.events, "event");
    let title = match millis(simulation.outage) {
        0 => format!("{events} at once"),
        outage => format!("{events} against an outage of {}", format::short_duration(outage)),
    };
    let conclusion = conclude(simulation, both);
    let conclusion_lines = wrap(&conclusion, 13.0 * 0.95, WIDTH - 2.0 * MARGIN);
    let command_lines = wrap_command(command, 10.5, WIDTH - 2.0 * MARGIN);
    let top = 112.0 + 19.0 * count(conclusion_lines.len());
    let second = top + PANEL_HEIGHT + 52.0;
    let bottom = second + PANEL_HEIGHT;
    let series = &both.with_jitter.series;
    let buckets = series.attempts.len() as u64;
    let counts = [&both.with_jitter, &both.without_jitter].map(|r| r.series.attempts.iter().copied().max());
    let mut drawing = Drawing {
        picture: Picture::new(bottom + 62.0 + 16.0 * count(command_lines.len())),
        simulation,
        time: Scale::Linear { max: series.bucket_ms.saturating_mul(buckets) },
        bucket_ms: series.bucket_ms,
        max_count: counts.into_iter().flatten().max().unwrap_or(0).max(simulation.events),
    };
    let picture = &mut drawing.picture;
    picture.text((MARGIN, 42.0), Anchor::Start, "title", &title);
    picture.text((MARGIN, 65.0), Anchor::Start, "quiet", subtitle(&simulation.policy, simulation));
    picture.lines((MARGIN, 87.0), 19.0, "", &conclusion_lines);
    drawing.panel(top, "No jitter", &both.without_jitter);
    let name = description::jitter(both.jitter);
    drawing.panel(second, &capitalised(&name), &both.with_jitter);
    drawing.time_labels(bottom);
    drawing.picture.lines((MARGIN, bottom + 52.0), 16.0, "command", &command_lines);
    drawing.picture.finish(&title, &conclusion, command)
}

fn subtitle(policy: &RetryPolicy, simulation: &Simulation) -> String {
    // The panels name the jitter.
    format!(
        "{}, {}; the destination recovers with {}/s",
        format::counted(policy.max_attempts().into(), "attempt"),
        waits(policy),
        format::count(simulation.capacity_per_second)
    )
}

struct Drawing<'a> {
    picture: Picture,
    simulation: &'a Simulation,
    time: Scale,
    bucket_ms: u64,
    /// Maximum of the count axis.
    max_count: u64,
}

impl Drawing<'_> {
    fn x(&self, millis: u64) -> f64 {
        LEFT + self.time.position(millis).min(1.0) * (RIGHT - LEFT)
    }

    /// Height of a count above the base line.
    fn height(&self, count: u64) -> f64 {
        Scale::Linear { max: self.max_count }.position(count) * (PANEL_HEIGHT - HEADROOM)
    }

    fn panel(&mut self, top: f64, name: &str, result: &SimulationResult) {
        let base = top + PANEL_HEIGHT;
        self.heading(top, name, result);
        self.ground(top, base);
        let bars = |drawing: &Self, counts: &[u64]| -> Vec<(f64, f64, f64)> {
            let width = (RIGHT - LEFT) / count(counts.len().max(1));
            let gap = if width > 3.0 { 1.0 } else { 0.0 };
            let bar = |(index, count): (u64, &u64)| {
                let height = drawing.height(*count).max(0.8);
                (drawing.x(index * drawing.bucket_ms), width - gap, height)
            };
            (0..).zip(counts).filter(|(_, count)| **count > 0).map(bar).collect()
        };
        let attempts = bars(self, &result.series.attempts);
        let delivered = bars(self, &result.series.delivered);
        self.picture.bars(base, attempts, "load");
        self.picture.bars(base, delivered, "good");
        self.delivered_so_far(base, result);
        self.capacity(base, result);
        self.picture.line((LEFT, base), (RIGHT, base), "axis");
        self.peak(base, result);
    }

    fn heading(&mut self, top: f64, name: &str, result: &SimulationResult) {
        let delivered = format::count(result.delivered);
        let outcome = match (result.last_delivery_ms, result.dead) {
            (Some(last), 0) => {
                format!("all {delivered} delivered by {}", format::short_duration(last))
            }
            (_, dead) => format!("{delivered} delivered, {} dead", format::count(dead)),
        };
        let heading = format!("{name}: {outcome}");
        self.picture.text((MARGIN, top - 8.0), Anchor::Start, "panel", heading);
    }

    /// Draws grid, numbers and the outage.
    fn ground(&mut self, top: f64, base: f64) {
        let end = self.x(millis(self.simulation.outage));
        self.picture.rect((LEFT, top + 4.0), (end - LEFT, PANEL_HEIGHT - 4.0), 0.0, "down");
        let down = format!("down {}", format::duration(millis(self.simulation.outage)));
        if end - LEFT > text_width(&down, 12.0) + 12.0 {
            let middle = (LEFT + end) / 2.0;
            self.picture.text((middle, top + 18.0), Anchor::Middle, "small quiet", down);
        }
        for tick in multiples(count_step(self.max_count, 4), self.max_count) {
            let y = base - self.height(tick);
            self.picture.line((LEFT, y), (RIGHT, y), "grid");
            self.picture.text((LEFT - 8.0, y + 4.0), Anchor::End, "small quiet", format::count(tick));
        }
        let above = base - self.height(self.max_count) - 12.0;
        self.picture.text((LEFT - 8.0, above), Anchor::End, "small quiet", "events");
        for tick in self.time.time_ticks(8) {
            let x = self.x(tick);
            self.picture.line((x, base), (x, base + 4.0), "axis");
        }
    }

    fn delivered_so_far(&mut self, base: f64, result: &SimulationResult) {
        let mut so_far = 0;
        let mut points = vec![(self.x(millis(self.simulation.outage)), base)];
        for (index, delivered) in (1..).zip(&result.series.delivered) {
            if *delivered > 0 {
                // Horizontal up to the bucket: nothing is delivered between two waves.
                points.push((self.x((index - 1) * self.bucket_ms), base - self.height(so_far)));
                so_far += delivered;
                points.push((self.x(index * self.bucket_ms), base - self.height(so_far)));
            }
        }
        let y = base - self.height(so_far);
        points.push((RIGHT, y));
        let area: Vec<_> = points.iter().copied().chain([(RIGHT, base), points[0]]).collect();
        self.picture.path(area, true, "good-band");
        self.picture.path(points, false, "good-line");
        let at = (RIGHT + 8.0, y + 4.0);
        self.picture.text_with_note(at, "good-text", &format::count(so_far), "delivered", "good-text");
    }

    /// Draws the capacity per bucket after the outage.
    fn capacity(&mut self, base: f64, result: &SimulationResult) {
        let capacity = self.simulation.capacity_per_second.saturating_mul(self.bucket_ms) / 1000;
        let from = self.x(millis(self.simulation.outage));
        if capacity > self.max_count || from >= RIGHT {
            return;
        }
        let y = base - self.height(capacity);
        self.picture.line((from, y), (RIGHT, y), "limit");
        // Avoids the label of the delivered line.
        let line = base - self.height(result.delivered);
        let label_y = if (y - line).abs() < 16.0 { line - 13.0 } else { y + 4.0 };
        let text = format!("capacity {}/s", format::count(self.simulation.capacity_per_second));
        self.picture.text((RIGHT + 8.0, label_y), Anchor::Start, "small", text);
    }

    /// Labels the highest bar after the outage, or before it if there is none after.
    fn peak(&mut self, base: f64, result: &SimulationResult) {
        let first_after = millis(self.simulation.outage).div_ceil(self.bucket_ms);
        let attempts = || (0u64..).zip(result.series.attempts.iter().copied());
        let highest = |from: u64| {
            // The first of equals: `max_by_key` alone takes the last.
            let bars = attempts().filter(|(index, count)| *index >= from && *count > 0);
            bars.max_by_key(|(index, count)| (*count, std::cmp::Reverse(*index)))
        };
        let Some((index, count)) = highest(first_after.max(1)).or_else(|| highest(1)) else {
            return;
        };
        let x = self.x(index * self.bucket_ms);
        let text = format!("{} attempts in {}", format::count(count), format::duration(self.bucket_ms));
        let y = base - self.height(count) - 7.0;
        let (at, anchor) =
            if x + text_width(&text, 12.0) < RIGHT { (x, Anchor::Start) } else { (x + 3.0, Anchor::End) };
        self.picture.text((at, y), anchor, "small load-text halo", text);
    }

    fn time_labels(&mut self, base: f64) {
        for tick in self.time.time_ticks(8) {
            let x = self.x(tick);
            self.picture.text((x, base + 19.0), Anchor::Middle, "small quiet", format::duration(tick));
        }
        self.picture.text((RIGHT + 20.0, base + 19.0), Anchor::Start, "small quiet", "since the start");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn picture(events: u64, outage_s: u64, capacity: u64, attempts: u32) -> String {
        let policy = RetryPolicy::webhook().to_builder().max_attempts(attempts).build().unwrap();
        let simulation = Simulation {
            policy,
            events,
            outage: Duration::from_secs(outage_s),
            capacity_per_second: capacity,
            seed: 0,
        };
        draw(&simulation, &simulation.compare().unwrap(), "redrive policy simulate --x")
    }

    #[test]
    fn both_panels_show_the_outcomes() {
        let svg = picture(1000, 5, 100, 5);
        for text in ["No jitter: 20 delivered, 980 dead", "±10% jitter: ", "capacity 100/s", "down 5s"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn pictures_are_small_and_have_valid_numbers() {
        for (events, outage, capacity, attempts) in
            [(1, 0, 1, 1), (1, 1_000_000, 1, 1), (10, 30, u64::MAX, 3), (2000, 30, 1, 200), (5, 7200, 5, 12)]
        {
            let svg = picture(events, outage, capacity, attempts);
            assert!(svg.len() < 60_000, "{} bytes", svg.len());
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
