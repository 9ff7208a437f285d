//! `redrive.toml`: keys and values, each with its line. The settings of `redrive serve` stand at the top, those of
//! `redrive scheduler` in a section of their own.

use clap::{Arg, ArgAction, Command};
use toml_edit::{Document, Item, TableLike, Value};

use super::layers::{Known, keys, try_value};

/// A name is taken for a mistyped one if it is so much like it.
const LIKE: f64 = 0.75;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// How it is called.
    pub(super) name: String,
    entries: Vec<Entry>,
    /// Of the section `[scheduler]`.
    scheduler: Vec<Entry>,
}

/// The section of `redrive scheduler`.
pub(super) const SCHEDULER: &str = "scheduler";

/// The sections in it that are named after a queue, and the flag that each of them is.
pub(super) const QUEUES: &str = "queues";
const QUEUE: &str = "queue";

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

    /// The same in the section of the scheduler.
    pub(super) fn scheduler_entry(&self, key: &str) -> Option<&Entry> {
        self.scheduler.iter().find(|entry| entry.key == key)
    }
}

/// Reads a file by the arguments of the commands, or says everything that is wrong with it.
pub(super) fn read(name: &str, text: &str, known: &Known) -> Result<File, Vec<String>> {
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

/// Reads, and gathers what is wrong.
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
        // What a queue has otherwise is a section here.
        let known: Vec<_> = keys(command).into_iter().filter(|(name, _)| name != QUEUE).collect();
        let arg = known.iter().find(|(name, _)| name == key).map(|(_, arg)| arg);
        let read = match arg {
            None => Err(unknown(key, item, &known)),
            Some(arg) => values(arg, item).and_then(|values| checked(command, arg, values)),
        };
        self.note(line, read.map(|values| Entry { key: key.to_owned(), values, line }))
    }

    /// Each of the sections as the flag that it is.
    fn queues(&mut self, queues: &dyn TableLike, scheduler: &Command) -> Option<Entry> {
        let mut entry: Option<Entry> = None;
        for (queue, item) in queues.iter() {
            let line = self.line(queues, queue, item);
            let Some(section) = item.as_table_like() else {
                let say = format!("write [scheduler.queues.{queue:?}] and the keys of the queue below it");
                self.note::<()>(line, Err(say));
                continue;
            };
            let mut parts = Vec::new();
            for (key, item) in section.iter() {
                let line = self.line(section, key, item);
                let value = item.as_value().map_or_else(|| Err("use a text or a number".to_owned()), text);
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
        return "the key itself does not belong here, where others may read it: set REDRIVE_SECRET_KEY, or name a file with \
                secret_key_file"
            .to_owned();
    }
    if item.is_table() || item.is_array_of_tables() {
        return format!(
            "[{key}] is a section, and there is only [{SCHEDULER}] with [{SCHEDULER}.{QUEUES}.NAME] in it: every other key stands on its own"
        );
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
        read("redrive.toml", text, &Known::new()).expect_err("it has errors")
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
        let file = read("redrive.toml", text, &Known::new()).unwrap();
        assert_eq!(file.entry("allow_range").unwrap().values, ["10.0.0.0/8", "127.0.0.0/8"]);
        assert_eq!(file.entry("multiplier").unwrap().values, ["1.5"]);
        assert_eq!(file.entry("allow_plain_http").unwrap().values, ["true"]);
        assert_eq!(file.entry("in_flight").unwrap().line, 4);
        assert_eq!(
            read("redrive.toml", "allow_range = '10.0.0.0/8'", &Known::new()).unwrap().entries.len(),
            1
        );
    }

    #[test]
    fn the_scheduler_has_a_section_with_one_for_each_queue() {
        let text = "[scheduler]\nbase_delay = 500\nhttp_port = 9000\n[scheduler.queues.\"a.orders\"]\nbase_delay = '5s'\nmax_retries = 8\n\
                    [scheduler.queues.mail]\nmax_delay = 10000\n";
        let file = read("redrive.toml", text, &Known::new()).unwrap();
        assert_eq!(file.scheduler_entry("base_delay").unwrap().values, ["500"]);
        let queues = file.scheduler_entry("queue").unwrap();
        assert_eq!(queues.values, ["a.orders=base_delay:5s,max_retries:8", "mail=max_delay:10000"]);
        assert!(file.entries.is_empty(), "the scheduler's are not the server's");

        let said = errors(
            "[scheduler]\nhttp_prt = 1\nqueue = ['x=max_retries:1']\n[scheduler.queues]\nmail = 3\n[scheduler.queues.orders]\n\
             colour = 'red'\nbase_delay = 'soon'\n",
        );
        assert_eq!(said.len(), 5, "{said:#?}");
        assert_eq!(said[0], "redrive.toml, line 2: there is no key http_prt; did you mean http_port?");
        assert!(said[1].contains("line 3: there is no key queue"), "{said:#?}");
        assert!(said[2].contains("line 5: write [scheduler.queues."), "{said:#?}");
        assert!(said[3].contains("line 7") && said[3].contains("colour"), "{said:#?}");
        assert!(said[4].contains("line 8") && said[4].contains("soon"), "{said:#?}");
    }
}
