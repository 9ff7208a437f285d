//! `redrive.toml`: keys and values, each with its line.

use clap::{Arg, ArgAction, Command};
use toml_edit::{Document, Item, Value};

use super::layers::{keys, try_value};

/// A name is taken for a mistyped one if it is so much like it.
const LIKE: f64 = 0.75;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// How it is called.
    pub(super) name: String,
    entries: Vec<Entry>,
}

/// One key of it.
#[derive(Debug)]
pub(crate) struct Entry {
    key: String,
    pub(super) values: Vec<String>,
    pub(super) line: usize,
}

impl File {
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

/// Reads a file by the arguments of `serve`, or says everything that is wrong with it.
pub(super) fn read(name: &str, text: &str, serve: &Command) -> Result<File, Vec<String>> {
    let document = Document::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        vec![format!("{name}, line {line}: {}", error.message().lines().collect::<Vec<_>>().join(" "))]
    })?;
    let known = keys(serve);
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    for (key, item) in document.as_table() {
        let span = document.as_table().key(key).and_then(|key| key.span()).or_else(|| item.span());
        let line = span.map_or(1, |span| line_of(text, span.start));
        let arg = known.iter().find(|(name, _)| name == key).map(|(_, arg)| arg);
        let read = match arg {
            None => Err(unknown(key, item, &known)),
            Some(arg) => values(arg, item).and_then(|values| checked(serve, arg, values)),
        };
        match read {
            Ok(values) => entries.push(Entry { key: key.to_owned(), values, line }),
            Err(why) => errors.push(format!("{name}, line {line}: {why}")),
        }
    }
    if errors.is_empty() { Ok(File { name: name.to_owned(), entries }) } else { Err(errors) }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn unknown(key: &str, item: &Item, known: &[(String, Arg)]) -> String {
    if key == "secret_key" {
        return "the key itself does not belong here, where others may read it: set REDRIVE_SECRET_KEY, or name a file with \
                secret_key_file"
            .to_owned();
    }
    if item.is_table() || item.is_array_of_tables() {
        return format!("[{key}] is a section, and there are none: every key stands on its own");
    }
    let likeness = |(name, _): &&(String, Arg)| strsim::jaro_winkler(name, key);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|nearest| likeness(nearest) >= LIKE) {
        Some((nearest, _)) => format!("there is no key {key}; did you mean {nearest}?"),
        None => format!("there is no key {key}; `redrive config example` shows all of them"),
    }
}

/// As they would be written on the command line.
fn values(arg: &Arg, item: &Item) -> Result<Vec<String>, String> {
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    match item.as_value() {
        Some(Value::Boolean(value)) if is_switch => Ok(vec![value.value().to_string()]),
        Some(_) if is_switch => Err("use true or false".to_owned()),
        Some(Value::Array(list)) if is_list => list.iter().map(text).collect(),
        Some(value) => text(value).map(|text| vec![text]),
        None => Err("use a text or a number".to_owned()),
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.value().clone()),
        Value::Integer(number) => Ok(number.value().to_string()),
        Value::Float(number) => Ok(number.value().to_string()),
        _ => Err("use a text or a number".to_owned()),
    }
}

fn checked(serve: &Command, arg: &Arg, values: Vec<String>) -> Result<Vec<String>, String> {
    for value in &values {
        try_value(serve, arg, value)?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::super::layers::serve;
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        read("redrive.toml", text, &serve()).expect_err("it has errors")
    }

    #[test]
    fn every_error_is_said_with_its_line_at_once() {
        let said = errors(
            "listen = \"nowhere\"\n\nlissten = \"127.0.0.1:1\"\nrate_limit = 0\nallow_plain_http = \"yes\"\n[limits]\n",
        );
        assert_eq!(said.len(), 5, "{said:#?}");
        assert!(said[0].starts_with("redrive.toml, line 1: ") && said[0].contains("nowhere"), "{said:#?}");
        assert_eq!(said[1], "redrive.toml, line 3: there is no key lissten; did you mean listen?");
        assert!(said[2].contains("line 4") && said[2].contains('0'), "{said:#?}");
        assert_eq!(said[3], "redrive.toml, line 5: use true or false");
        assert!(said[4].contains("line 6: [limits] is a section"), "{said:#?}");
        assert!(errors("a = \n")[0].contains("line 1"));
        assert!(errors("zzz = 1")[0].contains("redrive config example"));
        assert!(errors("secret_key = 'c2VjcmV0'")[0].contains("REDRIVE_SECRET_KEY"));
        assert!(errors("listen = ['127.0.0.1:1']")[0].contains("a text or a number"));
    }

    #[test]
    fn values_are_read_as_on_the_command_line() {
        let text = "allow_range = ['10.0.0.0/8', '127.0.0.0/8']\nmultiplier = 1.5\nallow_plain_http = true\nin_flight = 7";
        let file = read("redrive.toml", text, &serve()).unwrap();
        assert_eq!(file.entry("allow_range").unwrap().values, ["10.0.0.0/8", "127.0.0.0/8"]);
        assert_eq!(file.entry("multiplier").unwrap().values, ["1.5"]);
        assert_eq!(file.entry("allow_plain_http").unwrap().values, ["true"]);
        assert_eq!(file.entry("in_flight").unwrap().line, 4);
        assert_eq!(read("redrive.toml", "allow_range = '10.0.0.0/8'", &serve()).unwrap().entries.len(), 1);
    }
}
