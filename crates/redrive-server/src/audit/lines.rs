//! Lines of a file of any size, one at a time, and none longer than memory is meant for.

use std::io::{self, BufRead, Read};

/// A longer line is not an audit record.
pub(crate) const LONGEST: usize = 1024 * 1024;

/// A line as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// Without its end.
    Whole(&'a [u8]),
    /// Longer than [`LONGEST`]; the rest was skipped.
    TooLong,
}

/// Reads lines into one buffer that is used again for each.
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
        // One more for the line's end: a line of exactly the limit is whole.
        let limit = LONGEST as u64 + 1;
        let read = self.reader.by_ref().take(limit).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > LONGEST {
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
    fn a_line_over_the_limit_is_skipped_and_the_next_one_is_read() {
        let mut text = vec![b'x'; LONGEST];
        text.extend(b"\n");
        text.extend(vec![b'y'; 3 * LONGEST]);
        text.extend(b"\nlast");
        let mut lines = Lines::new(&text[..]);
        assert!(matches!(lines.next().unwrap(), Some(Line::Whole(line)) if line.len() == LONGEST));
        assert_eq!(lines.next().unwrap(), Some(Line::TooLong));
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"last")));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn empty_lines_are_lines_and_an_empty_file_has_none() {
        let mut lines = Lines::new(&b"\n\n"[..]);
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"")));
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"")));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(Lines::new(&b""[..]).next().unwrap(), None);
    }
}
