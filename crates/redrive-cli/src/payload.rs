//! Parses and pretty-prints payloads without changing names, numbers or their order.

use serde_json::value::RawValue;

const INDENT: usize = 2;

/// Validates a payload from the command line and keeps its text.
pub(crate) fn parse(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text.trim())
        .map_err(|error| format!("not JSON: {error}; quote it whole, such as '{{\"order\": 7}}'"))
}

/// Indents JSON text; replaces control characters that JSON does not escape.
pub(crate) fn pretty(json: &str) -> String {
    let mut pretty = " ".repeat(INDENT);
    let mut depth = 1_usize;
    let (mut in_text, mut escaped) = (false, false);
    let mut rest = json.chars().peekable();
    let line = |pretty: &mut String, depth: usize| {
        pretty.push('\n');
        pretty.push_str(&" ".repeat(depth.saturating_mul(INDENT).min(80)));
    };
    while let Some(c) = rest.next() {
        if in_text {
            pretty.push(if c.is_control() { '·' } else { c });
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
    pretty
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
        assert_eq!(pretty("\"\u{9b}\""), "  \"·\"");
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(pretty(&deep).lines().all(|line| line.len() <= 82));
    }
}
