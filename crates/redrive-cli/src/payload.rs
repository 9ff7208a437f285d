//! Parses and pretty-prints payloads without changing names, numbers or their order.

use redrive_server::terminal_text::{is_unsafe, json_escape, one_line};
use serde_json::value::RawValue;

const INDENT: usize = 2;

/// Size below which a payload is indented however deep it is nested.
const MIN_PRETTY_BYTES: usize = 64 << 10;

/// Validates a payload from the command line and keeps its text.
pub(crate) fn parse(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text.trim())
        .map_err(|error| format!("not JSON: {error}; quote it whole, such as '{{\"order\": 7}}'"))
}

/// Indents JSON text and escapes characters that could steer a terminal. A text that indentation would blow up to more than
/// four times its size, because it is deeply nested, stays on one line.
pub(crate) fn pretty(json: &str) -> String {
    let max_bytes = json.len().saturating_mul(4).max(MIN_PRETTY_BYTES);
    indented(json, max_bytes).unwrap_or_else(|| format!("{:INDENT$}{}", "", one_line(json)))
}

/// Indents JSON text; `None` if the result exceeds `max_bytes`.
fn indented(json: &str, max_bytes: usize) -> Option<String> {
    let mut pretty = " ".repeat(INDENT);
    let mut depth = 1_usize;
    let (mut in_text, mut escaped) = (false, false);
    let mut rest = json.chars().peekable();
    let line = |pretty: &mut String, depth: usize| {
        pretty.push('\n');
        pretty.push_str(&" ".repeat(depth.saturating_mul(INDENT).min(80)));
    };
    while let Some(c) = rest.next() {
        if pretty.len() > max_bytes {
            return None;
        }
        if in_text {
            if is_unsafe(c) {
                pretty.push_str(&json_escape(c));
            } else {
                pretty.push(c);
            }
            (in_text, escaped) = (escaped || c != '"', !escaped && c == '\\');
            continue;
        }
        match c {
            '{' | '[' => {
                pretty.push(c);
                while rest.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                if let Some(close) = rest.next_if(|next| matches!(next, '}' | ']')) {
                    pretty.push(close);
                } else {
                    depth += 1;
                    line(&mut pretty, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut pretty, depth);
                pretty.push(c);
            }
            ',' => {
                pretty.push(c);
                line(&mut pretty, depth);
            }
            ':' => pretty.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => {
                in_text = c == '"';
                pretty.push(c);
            }
        }
    }
    Some(pretty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_printing_keeps_names_numbers_and_order() {
        let text = r#"{"z": 1.10,"a":[ ],"t":"a\"{,:\\","n":[1,{"x":null}]}"#;
        let expected = r#"  {
    "z": 1.10,
    "a": [],
    "t": "a\"{,:\\",
    "n": [
      1,
      {
        "x": null
      }
    ]
  }"#;
        assert_eq!(pretty(text), expected);
        assert_eq!(pretty("7"), "  7");
        assert_eq!(pretty("\"\u{9b}\u{202e}\""), "  \"\\u009b\\u202e\"");
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(pretty(&deep).lines().all(|line| line.len() <= 82));
    }

    #[test]
    fn pretty_printing_does_not_blow_up_a_deeply_nested_payload() {
        let deep = format!("{}{}{}", "[".repeat(500), vec!["1"; 100_000].join(","), "]".repeat(500));
        assert_eq!(pretty(&deep), format!("  {deep}"));
    }
}
