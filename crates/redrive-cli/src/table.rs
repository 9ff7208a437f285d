//! Prints aligned tables.

use std::io::{self, Write};

use crate::format;
use crate::screen::{Screen, Style};

/// Alignment of a column.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Table with a heading. Lines are cut at the width of the screen.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    heading: [(&'static str, Align); N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [(&'static str, Align); N]) -> Self {
        Table { heading, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    pub(crate) fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        let widths: [usize; N] = std::array::from_fn(|column| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.heading[column].0.chars().count()]).max().unwrap_or(0)
        });
        let heading: [String; N] = std::array::from_fn(|column| self.heading[column].0.to_owned());
        writeln!(out, "{}", screen.paint(Style::Quiet, self.line(&heading, &widths, screen)))?;
        for row in &self.rows {
            writeln!(out, "{}", self.line(row, &widths, screen))?;
        }
        Ok(())
    }

    fn line(&self, cells: &[String; N], widths: &[usize; N], screen: Screen) -> String {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            match self.heading[column].1 {
                Align::Left => line.extend([cell, padding.as_str()]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
            line.push_str("  ");
        }
        format::cut(line.trim_end(), screen.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_are_cut_at_the_width() {
        let mut table = Table::new([("name", Align::Left), ("n", Align::Right), ("text", Align::Left)]);
        table.row(["a".into(), "1000".into(), "x".repeat(100)]);
        table.row(["longer".into(), "7".into(), "y".into()]);
        let mut text = Vec::new();
        table.print(&mut text, Screen { width: 40, colour: false }).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "name       n  text");
        assert_eq!(lines[1].chars().count(), 40);
        assert!(lines[1].ends_with('…'), "{text}");
        assert_eq!(lines[2], "longer     7  y");
    }
}
