//! Makes foreign text safe to print on a terminal: escapes characters that steer it, reorder text or are invisible.

use std::io;

use serde_json::ser::Formatter;

/// Whether a printed character could steer a terminal (C0, DEL, C1), reorder text (bidi controls) or be invisible.
pub fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{61c}'
        | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Puts a text on one line: joins its words with single spaces and writes unsafe characters as `\u{202e}`.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if is_unsafe(c) { line.extend(c.escape_unicode()) } else { line.push(c) }
        }
    }
    line
}

/// Returns the escape of a character in JSON text, such as `\u202e`.
pub fn json_escape(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// JSON formatter that escapes unsafe characters, also in stored payloads. The values stay as they are.
#[derive(Debug)]
pub struct SafeJson;

impl Formatter for SafeJson {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write_safe(out, fragment)
    }

    fn write_raw_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        write_safe(out, fragment)
    }
}

fn write_safe<W: ?Sized + io::Write>(out: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    // White space between the tokens of a stored payload is safe and may not be escaped.
    while let Some(at) = rest.find(|c| is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t')) {
        out.write_all(&rest.as_bytes()[..at])?;
        let mut after = rest[at..].chars();
        if let Some(c) = after.next() {
            out.write_all(json_escape(c).as_bytes())?;
        }
        rest = after.as_str();
    }
    out.write_all(rest.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn one_line_escapes_control_bidi_and_zero_width_characters() {
        assert_eq!(one_line("a\n  b\x1b[31m c"), "a b\\u{1b}[31m c");
        assert_eq!(
            one_line("\u{7f}\u{9b}2J \u{202e}txt\u{200b}.\u{2066}exe"),
            "\\u{7f}\\u{9b}2J \\u{202e}txt\\u{200b}.\\u{2066}exe"
        );
        assert_eq!(one_line("größer, 東京, שלום, 🚚"), "größer, 東京, שלום, 🚚");
    }

    #[test]
    fn json_for_people_keeps_its_value_and_escapes_unsafe_characters() {
        #[derive(Serialize)]
        struct Shown<'a> {
            name: &'a str,
            payload: Box<RawValue>,
        }
        let payload = "{ \"a\u{9b}\":\n[1e400, \"\u{202e}\u{e0001}x\"] }";
        let shown =
            Shown { name: "\u{7f}é\u{200b}\n", payload: RawValue::from_string(payload.to_owned()).unwrap() };
        let mut written = Vec::new();
        shown.serialize(&mut serde_json::Serializer::with_formatter(&mut written, SafeJson)).unwrap();
        let expected = "{\"name\":\"\\u007fé\\u200b\\n\",\"payload\":{ \"a\\u009b\":\n[1e400, \"\\u202e\\udb40\\udc01x\"] }}";
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }
}
