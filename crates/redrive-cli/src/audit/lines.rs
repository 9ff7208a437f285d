//! Reads lines one at a time with bounded memory.

use std::io::{self, BufRead, Read};

/// Maximum length of an audit record.
pub(crate) const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// Without the newline.
    Whole(&'a [u8]),
    /// Longer than [`MAX_LINE_BYTES`]; skipped.
    TooLong,
}

/// Line reader with one reused buffer.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        Lines { reader, buffer: Vec::new() }
    }

    /// The next line; `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        // Plus one for the newline.
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = self.reader.by_ref().take(limit).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > MAX_LINE_BYTES {
            self.reader.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Whole(&self.buffer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_over_the_limit_is_skipped() {
        let mut text = vec![b'x'; MAX_LINE_BYTES];
        text.extend(b"\n");
        text.extend(vec![b'y'; 3 * MAX_LINE_BYTES]);
        text.extend(b"\nlast");
        let mut lines = Lines::new(&text[..]);
        assert!(matches!(lines.next().unwrap(), Some(Line::Whole(line)) if line.len() == MAX_LINE_BYTES));
        assert_eq!(lines.next().unwrap(), Some(Line::TooLong));
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"last")));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn empty_lines_count_and_an_empty_file_has_none() {
        let mut lines = Lines::new(&b"\n\n"[..]);
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"")));
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"")));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(Lines::new(&b""[..]).next().unwrap(), None);
    }
}
