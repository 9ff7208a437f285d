//! Draws a policy as SVG: each attempt at its time, with its jitter range.

use redrive_retry::RetryPolicy;

use super::description::{describe, jitter, waits};
use super::schedule::{Row, Schedule};
use crate::chart::scale::{Scale, count_step, multiples};
use crate::chart::svg::{Anchor, Picture, WIDTH, count, text_width, wrap_command};
use crate::format::{self, capitalised};

/// Up to this number, each attempt has its own line; more attempts become a curve.
const MAX_LINES: u32 = 16;
/// More points are not visible on a curve.
const MAX_POINTS: usize = 240;

const MARGIN: f64 = 28.0;
const LEFT: f64 = 116.0;
/// Right end of the axis; labels are beyond it.
const RIGHT: f64 = WIDTH - 176.0;
const TOP: f64 = 104.0;

/// Draws the schedule; `command` is printed below it.
pub(crate) fn draw(schedule: Schedule<'_>, name: &str, command: &str) -> String {
    let last = schedule.last();
    let title = if last.attempt == 1 {
        format!("{name}: one attempt, no retries")
    } else {
        let attempts = format::counted(last.attempt.into(), "attempt");
        format!("{name}: {attempts} within {}", format::short_duration(last.total_ms))
    };
    let smallest = schedule.rows().find(|row| row.total_ms > 0).map_or(0, |row| row.total_ms);
    let scale = Scale::of_range(smallest, last.total_max_ms);
    let lines = last.attempt <= MAX_LINES;
    let bottom = TOP + if lines { f64::from(last.attempt) * line_height(last.attempt) + 10.0 } else { 340.0 };
    let command_lines = wrap_command(command, 10.5, WIDTH - 2.0 * MARGIN);
    let mut drawing =
        Drawing { picture: Picture::new(bottom + 80.0 + 16.0 * count(command_lines.len())), scale, bottom };
    drawing.frame(&title, schedule, &command_lines);
    if lines {
        drawing.lines(&schedule.rows().collect::<Vec<_>>());
    } else {
        drawing.curve(&schedule.sample(MAX_POINTS), last);
    }
    let description = format!(
        "{}. The last attempt comes {} after the first, with jitter between {} and {}.",
        describe(schedule.policy),
        format::duration(last.total_ms),
        format::duration(last.total_min_ms),
        format::duration(last.total_max_ms)
    );
    drawing.picture.finish(&title, &description, command)
}

fn line_height(attempts: u32) -> f64 {
    if attempts <= 8 { 44.0 } else { 30.0 }
}

/// Earliest and latest time of an attempt, if jitter spreads them.
fn jitter_range(row: &Row) -> String {
    if row.total_min_ms == row.total_max_ms {
        return String::new();
    }
    let ends = [row.total_min_ms, row.total_max_ms].map(format::short_duration);
    ends.join("–")
}

fn subtitle(policy: &RetryPolicy) -> String {
    if policy.max_retries() == 0 {
        return "If it fails, the event goes to the dead-letter queue".to_owned();
    }
    capitalised(&format!("{}, {}", waits(policy), jitter(policy.jitter())))
}

struct Drawing {
    picture: Picture,
    scale: Scale,
    bottom: f64,
}

impl Drawing {
    fn x(&self, millis: u64) -> f64 {
        LEFT + self.scale.position(millis) * (RIGHT - LEFT)
    }

    /// Draws titles, grid, axis and command.
    fn frame(&mut self, title: &str, schedule: Schedule<'_>, command: &[String]) {
        self.picture.text((MARGIN, 42.0), Anchor::Start, "title", title);
        self.picture.text((MARGIN, 66.0), Anchor::Start, "quiet", subtitle(schedule.policy));
        let bottom = self.bottom;
        for tick in self.scale.time_ticks(6) {
            let x = self.x(tick);
            self.picture.line((x, TOP - 12.0), (x, bottom), "grid");
            self.picture.text((x, bottom + 18.0), Anchor::Middle, "small quiet", format::duration(tick));
        }
        self.picture.line((LEFT, bottom), (RIGHT, bottom), "axis");
        let axis = if self.scale.is_log() {
            "time since the first attempt, logarithmic"
        } else {
            "time since the first attempt"
        };
        let middle = (LEFT + RIGHT) / 2.0;
        self.picture.text((middle, bottom + 38.0), Anchor::Middle, "small quiet", axis);
        self.picture.lines((MARGIN, bottom + 70.0), 16.0, "command", command);
    }

    /// Draws one line per attempt: its delay, jitter range and nominal time.
    fn lines(&mut self, rows: &[Row]) {
        let height = line_height(u32::try_from(rows.len()).unwrap_or(u32::MAX));
        let mut before: Option<(f64, f64)> = None;
        for row in rows {
            let y = TOP + (f64::from(row.attempt) - 0.5) * height;
            let x = self.x(row.total_ms);
            let (from, to) = (self.x(row.total_min_ms), self.x(row.total_max_ms));
            self.picture.text(
                (MARGIN, y + 4.5),
                Anchor::Start,
                "small quiet",
                format_args!("attempt {}", row.attempt),
            );
            if let Some((x_before, y_before)) = before {
                self.picture.line((x_before, y_before), (x_before, y), "lead");
                self.picture.line((x_before, y), (x, y), "load-line");
                let delay = format!("delay {}", format::duration(row.delay_ms));
                if text_width(&delay, 12.0) + 12.0 < from - x_before {
                    let middle = (x_before + from) / 2.0;
                    self.picture.text((middle, y - 7.0), Anchor::Middle, "small quiet halo", delay);
                }
            }
            if row.total_min_ms < row.total_max_ms {
                self.picture.rect((from, y - 9.0), (to - from, 18.0), 5.0, "load-band");
            }
            self.picture.dot((x, y), 5.0, "load");
            let label_x = to.max(x + 5.0) + 10.0;
            self.label(row, (label_x, y + 4.5));
            if row.attempt > 1 && row.attempt as usize == rows.len() {
                let end = "or dead-letter queue";
                self.picture.text((label_x, y + 20.0), Anchor::Start, "small quiet halo", end);
            }
            before = Some((x, y));
        }
    }

    fn label(&mut self, row: &Row, at: (f64, f64)) {
        if row.attempt == 1 {
            return self.picture.text(at, Anchor::Start, "strong halo", "immediately");
        }
        let time = format!("at {}", format::short_duration(row.total_ms));
        let mut note = jitter_range(row);
        if row.attempt == 2 && !note.is_empty() {
            note = format!("with jitter {note}");
        }
        // Without space for the note, the band alone shows the range.
        if at.0 + text_width(&time, 13.0) + text_width(&note, 12.0) > WIDTH - 12.0 {
            note.clear();
        }
        self.picture.text_with_note(at, "halo", &time, &note, "quiet");
    }

    /// Draws the number of attempts over time, with the jitter range.
    fn curve(&mut self, rows: &[Row], last: Row) {
        let bottom = self.bottom;
        let y = |attempt: u32| bottom - f64::from(attempt) / f64::from(last.attempt) * (bottom - TOP);
        let step = count_step(last.attempt.into(), 5);
        for tick in multiples(step, last.attempt.into()).into_iter().skip(1) {
            let at = y(u32::try_from(tick).unwrap_or(u32::MAX));
            self.picture.line((LEFT, at), (RIGHT, at), "grid");
            self.picture.text((LEFT - 10.0, at + 4.0), Anchor::End, "small quiet", format::count(tick));
        }
        self.picture.text((MARGIN, TOP - 14.0), Anchor::Start, "small quiet", "attempts");
        let early: Vec<_> = rows.iter().map(|row| (self.x(row.total_min_ms), y(row.attempt))).collect();
        let late = rows.iter().rev().map(|row| (self.x(row.total_max_ms), y(row.attempt)));
        let band: Vec<_> = early.into_iter().chain(late).collect();
        self.picture.path(band, true, "load-band");
        let nominal: Vec<_> = rows.iter().map(|row| (self.x(row.total_ms), y(row.attempt))).collect();
        self.picture.path(nominal, false, "load-line");
        let end = (self.x(last.total_ms), y(last.attempt));
        self.picture.dot(end, 5.0, "load");
        let x = self.x(last.total_max_ms).max(end.0) + 14.0;
        let time = format!("at {}", format::short_duration(last.total_ms));
        self.picture.text((x, end.1 + 4.5), Anchor::Start, "strong halo", time);
        let range = jitter_range(&last);
        if !range.is_empty() {
            for (down, text) in [(24.0, "with jitter"), (40.0, &range)] {
                self.picture.text((x, end.1 + down), Anchor::Start, "small quiet halo", text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_retry::Jitter;
    use std::time::Duration;

    fn picture(policy: &RetryPolicy) -> String {
        draw(Schedule { policy, identity: None }, "test", "redrive policy explain")
    }

    fn attempts(n: u32) -> RetryPolicy {
        RetryPolicy::webhook().to_builder().max_attempts(n).build().unwrap()
    }

    #[test]
    fn every_attempt_is_labelled_with_its_time_and_range() {
        let svg = picture(&RetryPolicy::webhook());
        for text in ["attempt 5", "at 15s", "13.5s–16.5s", "delay 8s", "since the first attempt"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn pictures_are_small_and_have_valid_numbers() {
        let immediate = attempts(9).to_builder().base_delay(Duration::ZERO).jitter(Jitter::None);
        let policies = [
            attempts(1),
            attempts(2),
            attempts(16),
            attempts(17),
            attempts(1_000_000),
            immediate.build().unwrap(),
        ];
        for policy in policies {
            let svg = picture(&policy);
            assert!(svg.len() < 40_000, "{} bytes", svg.len());
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
