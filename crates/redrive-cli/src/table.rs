//! Prints aligned tables.

use std::io::{self, Write};

use crate::format;
use crate::screen::{Screen, Style};

/// Table with a heading. Lines are cut at the width of the screen.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    heading: [&'static str; N],
    rows: Vec<[String; N]>,
    right: [bool; N],
}

impl<const N: usize> Table<N> {
    /// Creates a table whose columns are aligned left.
    pub(crate) fn new(heading: [&'static str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        Table { heading, rows: rows.into_iter().collect(), right: [false; N] }
    }

    /// Aligns these columns right.
    pub(crate) fn right(mut self, columns: &[usize]) -> Self {
        columns.iter().for_each(|column| self.right[*column] = true);
        self
    }

    pub(crate) fn print(&self, out: &mut (impl Write + ?Sized), screen: Screen) -> io::Result<()> {
        let heading = self.heading.map(str::to_owned);
        let all = || self.rows.iter().chain([&heading]);
        let widths: [usize; N] =
            std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0));
        writeln!(out, "{}", screen.paint(Style::Quiet, self.line(&heading, &widths, screen)))?;
        for row in &self.rows {
            writeln!(out, "{}", self.line(row, &widths, screen))?;
        }
        Ok(())
    }

    fn line(&self, cells: &[String; N], widths: &[usize; N], screen: Screen) -> String {
        let mut line = String::new();
        for ((cell, &width), right) in cells.iter().zip(widths).zip(self.right) {
            line += &if right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
        }
        format::cut(line.trim_end(), screen.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_are_cut_at_the_width() {
        let rows = [["a".into(), "1000".into(), "x".repeat(100)], ["longer".into(), "7".into(), "y".into()]];
        let table = Table::new(["name", "n", "text"], rows).right(&[1]);
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
