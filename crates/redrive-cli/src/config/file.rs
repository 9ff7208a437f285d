//! Parses `redrive.toml` into keys and values with their lines. The settings of `redrive serve` are at the top level, those of
//! `redrive scheduler` in the section `[scheduler]`.

use clap::{Arg, ArgAction, Command};
use toml_edit::{Document, Item, TableLike, Value};

use super::known_keys::{KnownKeys, keys, try_value};

/// Minimum similarity (Jaro-Winkler) for a suggested key.
const MIN_SIMILARITY: f64 = 0.75;

/// Parsed configuration file.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(super) name: String,
    entries: Vec<Entry>,
    /// Entries of the section `[scheduler]`.
    scheduler: Vec<Entry>,
}

/// Section of `redrive scheduler`.
pub(super) const SCHEDULER: &str = "scheduler";

/// Section with a subsection per queue, and the flag that each subsection becomes.
pub(super) const QUEUES: &str = "queues";
const QUEUE: &str = "queue";

/// Key with its values.
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

    /// Entry of the section `[scheduler]`.
    pub(super) fn scheduler_entry(&self, key: &str) -> Option<&Entry> {
        self.scheduler.iter().find(|entry| entry.key == key)
    }
}

/// Parses a file and checks it against the flags of the commands; returns all errors.
pub(super) fn read(name: &str, text: &str, known: &KnownKeys) -> Result<File, Vec<String>> {
    let document = Document::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        vec![format!("{name}, line {line}: {}", error.message().lines().collect::<Vec<_>>().join(" "))]
    })?;
    let mut reader = Reader { name, text, errors: Vec::new() };
    let mut entries = Vec::new();
    let mut scheduler = Vec::new();
    for (key, item) in document.as_table() {
        match item.as_table_like().filter(|_| key == SCHEDULER) {
            Some(section) => scheduler = reader.section(section, &known.scheduler),
            None => entries.extend(reader.entry(document.as_table(), key, item, &known.serve)),
        }
    }
    let errors = reader.errors;
    if errors.is_empty() { Ok(File { name: name.to_owned(), entries, scheduler }) } else { Err(errors) }
}

/// Parser that collects errors.
struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn section(&mut self, section: &dyn TableLike, scheduler: &Command) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (key, item) in section.iter() {
            match item.as_table_like().filter(|_| key == QUEUES) {
                Some(queues) => entries.extend(self.queues(queues, scheduler)),
                None => entries.extend(self.entry(section, key, item, scheduler)),
            }
        }
        entries
    }

    fn entry(&mut self, table: &dyn TableLike, key: &str, item: &Item, command: &Command) -> Option<Entry> {
        let line = self.line(table, key, item);
        // In the file, queues are sections.
        let known: Vec<_> = keys(command).into_iter().filter(|(name, _)| name != QUEUE).collect();
        let arg = known.iter().find(|(name, _)| name == key).map(|(_, arg)| arg);
        let read = match arg {
            None => Err(unknown(key, item, &known)),
            Some(arg) => values(arg, item).and_then(|values| checked(command, arg, values)),
        };
        self.note(line, read.map(|values| Entry { key: key.to_owned(), values, line }))
    }

    /// Converts each queue's section to a value of the flag `--queue`.
    fn queues(&mut self, queues: &dyn TableLike, scheduler: &Command) -> Option<Entry> {
        let mut entry: Option<Entry> = None;
        for (queue, item) in queues.iter() {
            let line = self.line(queues, queue, item);
            let Some(section) = item.as_table_like() else {
                let why = format!("write [scheduler.queues.{queue:?}] and the keys of the queue below it");
                self.note::<()>(line, Err(why));
                continue;
            };
            let mut parts = Vec::new();
            for (key, item) in section.iter() {
                let line = self.line(section, key, item);
                let value = item.as_value().map_or_else(|| Err("use a string or a number".to_owned()), text);
                let read = value.and_then(|value| {
                    let part = format!("{key}:{value}");
                    checked_queue(scheduler, &format!("{queue}={part}")).map(|()| part)
                });
                parts.extend(self.note(line, read));
            }
            let Some(entry) = (!parts.is_empty()).then(|| {
                entry.get_or_insert_with(|| Entry { key: QUEUE.to_owned(), values: Vec::new(), line })
            }) else {
                continue;
            };
            entry.values.push(format!("{queue}={}", parts.join(",")));
        }
        entry
    }

    fn line(&self, table: &dyn TableLike, key: &str, item: &Item) -> usize {
        let span = table.key(key).and_then(|key| key.span()).or_else(|| item.span());
        span.map_or(1, |span| line_of(self.text, span.start))
    }

    fn note<T>(&mut self, line: usize, read: Result<T, String>) -> Option<T> {
        read.map_err(|why| self.errors.push(format!("{}, line {line}: {why}", self.name))).ok()
    }
}

fn checked_queue(scheduler: &Command, value: &str) -> Result<(), String> {
    let known = keys(scheduler);
    let arg = known.iter().find(|(name, _)| name == QUEUE).map(|(_, arg)| arg);
    arg.map_or(Ok(()), |arg| try_value(scheduler, arg, value))
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn unknown(key: &str, item: &Item, known: &[(String, Arg)]) -> String {
    if key == "secret_key" {
        return "the key itself must not be in this file, which others may read: set REDRIVE_SECRET_KEY, or name a file with \
                secret_key_file"
            .to_owned();
    }
    if item.is_table() || item.is_array_of_tables() {
        return format!(
            "[{key}] is not a known section: only [{SCHEDULER}] and [{SCHEDULER}.{QUEUES}.NAME] exist; every other key is at the top level"
        );
    }
    let similarity = |(name, _): &&(String, Arg)| strsim::jaro_winkler(name, key);
    let nearest = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match nearest.filter(|nearest| similarity(nearest) >= MIN_SIMILARITY) {
        Some((nearest, _)) => format!("unknown key {key}; did you mean {nearest}?"),
        None => format!("unknown key {key}; `redrive config example` lists all keys"),
    }
}

/// Values as on the command line.
fn values(arg: &Arg, item: &Item) -> Result<Vec<String>, String> {
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    match item.as_value() {
        Some(Value::Boolean(value)) if is_switch => Ok(vec![value.value().to_string()]),
        Some(_) if is_switch => Err("use true or false".to_owned()),
        Some(Value::Array(list)) if is_list => list.iter().map(text).collect(),
        Some(value) => text(value).map(|text| vec![text]),
        None => Err("use a string or a number".to_owned()),
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.value().clone()),
        Value::Integer(number) => Ok(number.value().to_string()),
        Value::Float(number) => Ok(number.value().to_string()),
        _ => Err("use a string or a number".to_owned()),
    }
}

fn checked(command: &Command, arg: &Arg, values: Vec<String>) -> Result<Vec<String>, String> {
    for value in &values {
        try_value(command, arg, value)?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        read("redrive.toml", text, &KnownKeys::new()).expect_err("the file has errors")
    }

    #[test]
    fn all_errors_are_reported_with_their_lines() {
        let said = errors(
            "listen = \"nowhere\"\n\nlissten = \"127.0.0.1:1\"\nrate_limit = 0\nallow_plain_http = \"yes\"\n[limits]\n",
        );
        assert_eq!(said.len(), 5, "{said:#?}");
        assert!(said[0].starts_with("redrive.toml, line 1: ") && said[0].contains("nowhere"), "{said:#?}");
        assert_eq!(said[1], "redrive.toml, line 3: unknown key lissten; did you mean listen?");
        assert!(said[2].contains("line 4") && said[2].contains('0'), "{said:#?}");
        assert_eq!(said[3], "redrive.toml, line 5: use true or false");
        assert!(said[4].contains("line 6: [limits] is not a known section"), "{said:#?}");
        assert!(errors("a = \n")[0].contains("line 1"));
        assert!(errors("zzz = 1")[0].contains("redrive config example"));
        assert!(errors("secret_key = 'c2VjcmV0'")[0].contains("REDRIVE_SECRET_KEY"));
        assert!(errors("listen = ['127.0.0.1:1']")[0].contains("a string or a number"));
    }

    #[test]
    fn values_are_parsed_as_on_the_command_line() {
        let text = "allow_range = ['10.0.0.0/8', '127.0.0.0/8']\nmultiplier = 1.5\nallow_plain_http = true\nin_flight = 7";
        let file = read("redrive.toml", text, &KnownKeys::new()).unwrap();
        assert_eq!(file.entry("allow_range").unwrap().values, ["10.0.0.0/8", "127.0.0.0/8"]);
        assert_eq!(file.entry("multiplier").unwrap().values, ["1.5"]);
        assert_eq!(file.entry("allow_plain_http").unwrap().values, ["true"]);
        assert_eq!(file.entry("in_flight").unwrap().line, 4);
        assert_eq!(
            read("redrive.toml", "allow_range = '10.0.0.0/8'", &KnownKeys::new()).unwrap().entries.len(),
            1
        );
    }

    #[test]
    fn the_scheduler_section_has_a_subsection_per_queue() {
        let text = "[scheduler]\nbase_delay = 500\nhttp_port = 9000\n[scheduler.queues.\"a.orders\"]\nbase_delay = '5s'\nmax_retries = 8\n\
                    [scheduler.queues.mail]\nmax_delay = 10000\n";
        let file = read("redrive.toml", text, &KnownKeys::new()).unwrap();
        assert_eq!(file.scheduler_entry("base_delay").unwrap().values, ["500"]);
        let queues = file.scheduler_entry("queue").unwrap();
        assert_eq!(queues.values, ["a.orders=base_delay:5s,max_retries:8", "mail=max_delay:10000"]);
        assert!(file.entries.is_empty(), "keys of the scheduler are not keys of the server");

        let said = errors(
            "[scheduler]\nhttp_prt = 1\nqueue = ['x=max_retries:1']\n[scheduler.queues]\nmail = 3\n[scheduler.queues.orders]\n\
             colour = 'red'\nbase_delay = 'soon'\n",
        );
        assert_eq!(said.len(), 5, "{said:#?}");
        assert_eq!(said[0], "redrive.toml, line 2: unknown key http_prt; did you mean http_port?");
        assert!(said[1].contains("line 3: unknown key queue"), "{said:#?}");
        assert!(said[2].contains("line 5: write [scheduler.queues."), "{said:#?}");
        assert!(said[3].contains("line 7") && said[3].contains("colour"), "{said:#?}");
        assert!(said[4].contains("line 8") && said[4].contains("soon"), "{said:#?}");
    }
}
