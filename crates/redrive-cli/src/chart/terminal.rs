//! Draws plots with Unicode blocks.

use crate::chart::scale::Scale;
use crate::format;

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Reduces the values to at most `columns` by the maximum of each chunk, which keeps peaks; returns the chunk size too.
pub(crate) fn squeeze(values: &[u64], columns: usize) -> (Vec<u64>, usize) {
    let each = values.len().div_ceil(columns.max(1)).max(1);
    let highest = |chunk: &[u64]| chunk.iter().copied().max().unwrap_or(0);
    (values.chunks(each).map(highest).collect(), each)
}

/// Draws columns of blocks, the top line first. Every value above zero is visible.
pub(crate) fn area(values: &[u64], max: u64, height: usize) -> Vec<String> {
    let eighths: Vec<u64> = values.iter().map(|value| eighths(*value, max, height)).collect();
    let line = |row: usize| {
        let below = (height - 1 - row) as u64 * 8;
        let cell = |total: &u64| block(total.saturating_sub(below).min(8));
        eighths.iter().map(cell).collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

fn eighths(value: u64, max: u64, height: usize) -> u64 {
    if value == 0 {
        return 0;
    }
    let full = height as u128 * 8;
    let scaled = (u128::from(value) * full).div_ceil(u128::from(max.max(1)));
    u64::try_from(scaled.min(full)).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_possible_truncation)] // at most 8
fn block(eighths: u64) -> char {
    EIGHTHS[eighths.min(8) as usize]
}

/// Labels of a time axis of `columns` columns that ends at `max_ms`, without overlaps.
pub(crate) fn time_labels(columns: usize, max_ms: u64) -> String {
    let scale = Scale::Linear { max: max_ms };
    let mut line = String::new();
    let mut length = 0;
    for tick in scale.time_ticks((columns as u64 / 10).max(1)) {
        let text = format::duration(tick);
        let at = column(scale.position(tick), columns);
        if length > 0 && at <= length {
            continue;
        }
        line.extend(std::iter::repeat_n(' ', at - length));
        line.push_str(&text);
        length = at + text.chars().count();
    }
    line
}

/// Column of a position from 0 to 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // a column
pub(crate) fn column(position: f64, columns: usize) -> usize {
    (position.clamp(0.0, 1.0) * columns as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_shows_its_peak_and_its_smallest_value() {
        assert_eq!(area(&[0, 1, 500, 1000], 1000, 2), ["   █", " ▁██"]);
        assert_eq!(area(&[], 10, 1), [""]);
        assert_eq!(area(&[u64::MAX, 1], u64::MAX, 1), ["█▁"]);
    }

    #[test]
    fn reduction_keeps_every_peak() {
        assert_eq!(squeeze(&[1, 9, 3, 4, 5], 2), (vec![9, 5], 3));
        assert_eq!(squeeze(&[1, 2], 80), (vec![1, 2], 1));
        assert_eq!(squeeze(&[], 80), (vec![], 1));
    }

    #[test]
    fn time_labels_are_at_their_positions() {
        assert_eq!(time_labels(40, 60_000), "0s        15s       30s       45s       1m");
        assert_eq!(time_labels(20, 0), "0s");
    }
}
