//! Prints aligned tables.

use std::io::{self, Write};

use crate::format;
use crate::screen::{Screen, Style};

/// Columns are not made narrower than this.
const MIN_WIDTH: usize = 8;

/// Table with a heading. A line that is wider than a terminal is cut in its widest columns, never in those that are whole; without a
/// terminal nothing is cut.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    heading: [&'static str; N],
    rows: Vec<[String; N]>,
    right: [bool; N],
    whole: [bool; N],
    /// The column that is coloured, and the style of each of its cells.
    styles: Option<(usize, Vec<Style>)>,
}

impl<const N: usize> Table<N> {
    /// Creates a table whose columns are aligned left.
    pub(crate) fn new(heading: [&'static str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let rows = rows.into_iter().collect();
        Table { heading, rows, right: [false; N], whole: [false; N], styles: None }
    }

    /// Aligns these columns right.
    pub(crate) fn right(mut self, columns: &[usize]) -> Self {
        columns.iter().for_each(|column| self.right[*column] = true);
        self
    }

    /// Never cuts these columns: ids, of which only the whole is of use.
    pub(crate) fn whole(mut self, columns: &[usize]) -> Self {
        columns.iter().for_each(|column| self.whole[*column] = true);
        self
    }

    /// Colours the cells of a column, row by row.
    pub(crate) fn styles(mut self, column: usize, styles: impl IntoIterator<Item = Style>) -> Self {
        self.styles = Some((column, styles.into_iter().collect()));
        self
    }

    pub(crate) fn print(&self, out: &mut (impl Write + ?Sized), screen: Screen) -> io::Result<()> {
        let heading = self.heading.map(str::to_owned);
        let all = || self.rows.iter().chain([&heading]);
        let mut widths: [usize; N] =
            std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0));
        if screen.cuts {
            self.fit(&mut widths, screen.width);
        }
        writeln!(out, "{}", screen.paint(Style::Quiet, self.cells(&heading, &widths).concat().trim_end()))?;
        for (index, row) in self.rows.iter().enumerate() {
            let mut cells = self.cells(row, &widths);
            if let Some((column, styles)) = &self.styles
                && let Some(style) = styles.get(index)
            {
                cells[*column] = screen.paint(*style, &cells[*column]);
            }
            writeln!(out, "{}", cells.concat().trim_end())?;
        }
        Ok(())
    }

    /// Makes the widest columns narrower until a line fits, as far as that goes.
    fn fit(&self, widths: &mut [usize; N], width: usize) {
        loop {
            let total = widths.iter().sum::<usize>() + 2 * N.saturating_sub(1);
            let widest = (0..N).filter(|column| !self.whole[*column]).max_by_key(|column| widths[*column]);
            let Some(widest) = widest.filter(|column| total > width && widths[*column] > MIN_WIDTH) else {
                return;
            };
            // Down to the next widest column, which is then cut as well.
            let others = (0..N).filter(|column| !self.whole[*column] && *column != widest);
            let next = others.map(|column| widths[column]).max().unwrap_or(0).max(MIN_WIDTH);
            let needed = widths[widest].saturating_sub(total - width);
            widths[widest] = needed.max(next.min(widths[widest] - 1)).max(MIN_WIDTH);
        }
    }

    fn cells(&self, row: &[String; N], widths: &[usize; N]) -> Vec<String> {
        let cells = row.iter().zip(widths).zip(self.right);
        cells
            .map(|((cell, &width), right)| {
                let cell = format::cut(cell, width);
                if right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed<const N: usize>(table: &Table<N>, screen: Screen) -> Vec<String> {
        let mut text = Vec::new();
        table.print(&mut text, screen).unwrap();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn columns_are_aligned_and_the_widest_is_cut_at_the_width() {
        let rows = [["a".into(), "1000".into(), "x".repeat(100)], ["longer".into(), "7".into(), "y".into()]];
        let table = Table::new(["name", "n", "text"], rows).right(&[1]);
        let lines = printed(&table, Screen { width: 40, cuts: true, colour: false });
        assert_eq!(lines[0], "name       n  text");
        assert_eq!(lines[1].chars().count(), 40);
        assert!(lines[1].ends_with('…'), "{lines:?}");
        assert_eq!(lines[2], "longer     7  y");
    }

    #[test]
    fn nothing_is_cut_without_a_terminal() {
        let table = Table::new(["text", "more"], [["x".repeat(500), "y".repeat(500)]]);
        let lines = printed(&table, Screen { width: 40, cuts: false, colour: false });
        assert_eq!(lines[1], format!("{}  {}", "x".repeat(500), "y".repeat(500)));
    }

    #[test]
    fn ids_stay_whole_on_a_narrow_terminal() {
        let ids = ["0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a19", "0190b3c4-7d2e-7a11-8f00-6d5e4c3b2a20"];
        let rows = ids.map(|id| ["a type that is long".to_owned(), "why ".repeat(20), id.to_owned()]);
        let table = Table::new(["type", "why", "id"], rows).whole(&[2]);
        let lines = printed(&table, Screen { width: 60, cuts: true, colour: false });
        for (line, id) in lines[1..].iter().zip(ids) {
            assert!(line.ends_with(id) && line.chars().count() <= 60, "{lines:?}");
        }
    }

    #[test]
    fn a_coloured_column_stays_aligned() {
        let rows = [["done".to_owned(), "x".to_owned()], ["dlq".to_owned(), "y".to_owned()]];
        let table = Table::new(["status", "n"], rows).styles(0, [Style::Good, Style::Bad]);
        let lines = printed(&table, Screen { width: 60, cuts: true, colour: true });
        assert_eq!(lines[1], "\x1b[36mdone    \x1b[0mx");
        assert_eq!(lines[2], "\x1b[31mdlq     \x1b[0my");
    }
}
