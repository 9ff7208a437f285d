//! Reads `xtask/words.toml`.

use toml_edit::{DocumentMut, InlineTable, Item, Table, Value};

use super::names::parts;

/// Patterns and limits of the check.
#[derive(Debug, Default)]
pub(super) struct Config {
    /// Path prefixes that are not checked at all.
    skipped: Vec<String>,
    pub(super) openings: Vec<Opening>,
    /// First words of names that no test has.
    pub(super) test_openings: Vec<String>,
    pub(super) retired: Vec<Retired>,
    pub(super) shape: Shape,
}

impl Config {
    pub(super) fn is_skipped(&self, path: &str) -> bool {
        self.skipped.iter().any(|prefix| path.starts_with(prefix.as_str()))
    }
}

/// Words that no sentence of documentation begins with.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) words: String,
    pub(super) instead: String,
}

/// How a retired name is recognised.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Part of an identifier, in any case style: `call_up` is found in `CallUpReply` and `CALL_UPS`.
    Name(Vec<String>),
    /// A whole identifier, letter by letter.
    Exact(String),
    /// Words in prose and strings.
    Phrase(Vec<String>),
    /// Name of a source file or folder.
    File(String),
}

/// A name that is not used any more.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) pattern: Pattern,
    pub(super) instead: String,
    /// Path prefixes to which the rule is confined; empty for the whole repository.
    only: Vec<String>,
    except: Vec<String>,
    /// Comments, documents and strings may use the word: it is ordinary English.
    pub(super) code_only: bool,
}

impl Retired {
    pub(super) fn applies_to(&self, path: &str) -> bool {
        let begins = |prefix: &String| path.starts_with(prefix.as_str());
        (self.only.is_empty() || self.only.iter().any(begins)) && !self.except.iter().any(begins)
    }
}

/// Limits of size and the module pairs that may use each other.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// Path prefixes below `crates/` that are test tools, not product.
    pub(super) not_product: Vec<String>,
    pub(super) max_file_lines: usize,
    pub(super) max_function_lines: usize,
    pub(super) mutual_modules: Vec<MutualModules>,
}

/// Two modules of a crate that may use each other.
#[derive(Debug)]
pub(super) struct MutualModules {
    pub(super) crate_name: String,
    pub(super) modules: [String; 2],
}

impl Config {
    /// Parses the file; the error says which entry is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
        let table = document.as_table();
        let shape = table.get("shape").and_then(Item::as_table).ok_or("[shape] is missing")?;
        Ok(Config {
            skipped: strings(table.get("skipped").and_then(Item::as_value))?,
            openings: entries(table, "opening")?.map(opening).collect::<Result<_, _>>()?,
            test_openings: strings(table.get("test_opening").and_then(Item::as_value))?,
            retired: entries(table, "retired")?.map(retired).collect::<Result<_, _>>()?,
            shape: Shape {
                not_product: strings(shape.get("not_product").and_then(Item::as_value))?,
                max_file_lines: limit(shape, "max_file_lines")?,
                max_function_lines: limit(shape, "max_function_lines")?,
                mutual_modules: entries(shape, "mutual_modules")?.map(mutual).collect::<Result<_, _>>()?,
            },
        })
    }
}

fn limit(table: &Table, key: &str) -> Result<usize, String> {
    let number = table.get(key).and_then(Item::as_integer).and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("shape.{key} is missing"))
}

fn strings(value: Option<&Value>) -> Result<Vec<String>, String> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let array = value.as_array().ok_or_else(|| format!("{value:?} is not a list"))?;
    let one =
        |item: &Value| item.as_str().map(str::to_owned).ok_or_else(|| format!("{item:?} is not a string"));
    array.iter().map(one).collect()
}

fn entries<'a>(table: &'a Table, key: &str) -> Result<impl Iterator<Item = &'a InlineTable>, String> {
    let array = table.get(key).and_then(Item::as_array).ok_or_else(|| format!("{key} is not a list"))?;
    if let Some(wrong) = array.iter().find(|item| !item.is_inline_table()) {
        return Err(format!("{wrong:?} is not a table"));
    }
    Ok(array.iter().filter_map(Value::as_inline_table))
}

fn text<'a>(entry: &'a InlineTable, key: &str) -> Result<&'a str, String> {
    entry.get(key).and_then(Value::as_str).ok_or_else(|| format!("{entry:?} has no `{key}`"))
}

fn opening(entry: &InlineTable) -> Result<Opening, String> {
    Ok(Opening { words: text(entry, "words")?.to_owned(), instead: text(entry, "instead")?.to_owned() })
}

fn retired(entry: &InlineTable) -> Result<Retired, String> {
    let pattern = if let Ok(name) = text(entry, "name") {
        Pattern::Name(parts(name))
    } else if let Ok(exact) = text(entry, "exact") {
        Pattern::Exact(exact.to_owned())
    } else if let Ok(phrase) = text(entry, "phrase") {
        Pattern::Phrase(phrase.split_whitespace().map(str::to_lowercase).collect())
    } else {
        Pattern::File(text(entry, "file").map_err(|_| format!("{entry:?} has no pattern"))?.to_owned())
    };
    Ok(Retired {
        pattern,
        instead: text(entry, "instead")?.to_owned(),
        only: strings(entry.get("only"))?,
        except: strings(entry.get("except"))?,
        code_only: entry.get("code_only").and_then(Value::as_bool).unwrap_or(false),
    })
}

fn mutual(entry: &InlineTable) -> Result<MutualModules, String> {
    let modules = strings(entry.get("modules"))?;
    let modules = modules.try_into().map_err(|_| format!("{entry:?} does not name two modules"))?;
    text(entry, "reason")?;
    Ok(MutualModules { crate_name: text(entry, "crate")?.to_owned(), modules })
}
