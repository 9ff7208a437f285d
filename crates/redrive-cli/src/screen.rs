//! Width and colours of standard output.

use std::fmt::Display;
use std::io::{self, IsTerminal};

use crate::format;

/// Output for people.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Screen {
    /// In characters.
    pub(crate) width: usize,
    /// Whether longer lines are cut. Only a terminal has an edge; the reader of a pipe or a file wants everything.
    pub(crate) cuts: bool,
    /// Whether to use colours.
    pub(crate) colour: bool,
}

/// Role of a text, which determines its colour.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Style {
    /// A heading.
    Strong,
    /// Secondary text.
    Quiet,
    /// Attempts and waits.
    Load,
    /// Deliveries.
    Good,
    /// Losses.
    Bad,
}

/// Bounds of the line width in characters.
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=160;
const DEFAULT_WIDTH: usize = 80;

impl Screen {
    /// Inspects standard output; respects `COLUMNS`, `NO_COLOR` and `TERM=dumb`.
    pub(crate) fn of_stdout() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_terminal = io::stdout().is_terminal();
        let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let measured = || {
            let (width, _) = is_terminal.then(terminal_size::terminal_size).flatten()?;
            Some(usize::from(width.0))
        };
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Screen {
            width: asked.or_else(measured).unwrap_or(DEFAULT_WIDTH).clamp(*WIDTHS.start(), *WIDTHS.end()),
            cuts: is_terminal,
            colour: is_terminal && !dumb && !set("NO_COLOR"),
        }
    }

    /// Colours a text by its style, if colours are on.
    pub(crate) fn paint(self, style: Style, text: impl Display) -> String {
        if !self.colour {
            return text.to_string();
        }
        let code = match style {
            Style::Strong => "1",
            Style::Quiet => "2",
            Style::Load => "33",
            Style::Good => "36",
            Style::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Cuts a text to this many characters, on a terminal.
    pub(crate) fn cut(self, text: &str, width: usize) -> String {
        if self.cuts { format::cut(text, width) } else { text.to_owned() }
    }

    /// Wraps a paragraph to the width.
    pub(crate) fn wrap(self, text: &str) -> String {
        let mut wrapped = String::new();
        let mut column = 0;
        for word in text.split(' ') {
            let length = word.chars().count();
            if column > 0 && column + 1 + length > self.width {
                wrapped.push('\n');
                column = 0;
            } else if column > 0 {
                wrapped.push(' ');
                column += 1;
            }
            wrapped.push_str(word);
            column += length;
        }
        wrapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_plain_without_colour() {
        let plain = Screen { width: 80, cuts: true, colour: false };
        assert_eq!(plain.paint(Style::Load, "x"), "x");
        let colourful = Screen { colour: true, ..plain };
        assert_eq!(colourful.paint(Style::Load, "x"), "\x1b[33mx\x1b[0m");
    }

    #[test]
    fn lines_wrap_between_words() {
        let narrow = Screen { width: 12, cuts: true, colour: false };
        assert_eq!(narrow.wrap("one two three four"), "one two\nthree four");
        assert_eq!(narrow.wrap("unbreakable-as-it-is x"), "unbreakable-as-it-is\nx");
    }
}
