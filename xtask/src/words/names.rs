//! Finds retired names in identifiers, file names and prose.

use super::config::{Config, Pattern, Retired};
use super::shape::functions;
use super::source::{Language, Line, identifiers};
use super::{Finding, SourceFile};

/// Findings in the code, comments, strings and the name of a file.
pub(super) fn check(config: &Config, file: &SourceFile) -> Vec<Finding> {
    let rules: Vec<&Retired> = config.retired.iter().filter(|rule| rule.applies_to(&file.path)).collect();
    let mut findings = Vec::new();
    let mut report = |rule: &Retired, line, found: &str| {
        let message = format!("retired name \"{found}\": write {}", rule.instead);
        findings.push(Finding { file: file.path.clone(), line, message });
    };
    for rule in &rules {
        if let Some(found) = in_path(rule, file) {
            report(rule, 1, found);
        }
    }
    for (index, line) in file.lines.iter().enumerate() {
        for rule in &rules {
            if let Some(found) = in_line(rule, line) {
                report(rule, index + 1, &found);
            }
        }
    }
    findings.extend(test_names(config, file));
    findings
}

/// Findings in the names of test functions.
fn test_names(config: &Config, file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_test = false;
    for (index, line) in file.lines.iter().enumerate() {
        let code = line.code.trim();
        is_test |= code.starts_with("#[") && (code.contains("test]") || code.contains("::test("));
        let Some((_, name)) = functions(code).next() else { continue };
        let riddle = config
            .test_openings
            .iter()
            .find(|opening| name.strip_prefix(opening.as_str()).is_some_and(|rest| rest.starts_with('_')));
        if let Some(opening) = riddle.filter(|_| is_test) {
            let message =
                format!("test name begins with \"{opening}_\": state the behaviour of a named thing");
            findings.push(Finding { file: file.path.clone(), line: index + 1, message });
        }
        is_test = false;
    }
    findings
}

/// Finds the name in a Rust file's own path below `src/`.
fn in_path<'a>(rule: &Retired, file: &'a SourceFile) -> Option<&'a str> {
    if file.language != Language::Rust {
        return None;
    }
    let below = file.path.split_once("src/").map_or(file.path.as_str(), |(_, below)| below);
    let names = below.split('/').map(|name| name.strip_suffix(".rs").unwrap_or(name));
    names.into_iter().find(|name| match &rule.pattern {
        Pattern::File(retired) => name == retired,
        Pattern::Name(retired) => contains(&parts(name), retired),
        Pattern::Exact(_) | Pattern::Phrase(_) => false,
    })
}

fn in_line(rule: &Retired, line: &Line) -> Option<String> {
    let comment = line.comment.as_ref().map_or("", |comment| &comment.text);
    let prose: &[&str] = if rule.code_only { &[] } else { &[comment, &line.literal] };
    match &rule.pattern {
        Pattern::Name(retired) => {
            let texts = std::iter::once(line.code.as_str()).chain(prose.iter().copied());
            texts.flat_map(identifiers).find(|found| contains(&parts(found), retired)).map(str::to_owned)
        }
        Pattern::Exact(retired) => {
            let texts = std::iter::once(line.code.as_str()).chain(prose.iter().copied());
            texts.flat_map(identifiers).find(|found| found == retired).map(str::to_owned)
        }
        Pattern::Phrase(words) => {
            prose.iter().any(|text| contains(&lower_words(text), words)).then(|| words.join(" "))
        }
        Pattern::File(_) => None,
    }
}

fn lower_words(text: &str) -> Vec<String> {
    identifiers(text).map(str::to_lowercase).collect()
}

/// Whether the words occur side by side; the last of them may be a plural.
fn contains(all: &[String], words: &[String]) -> bool {
    let Some((last, first)) = words.split_last() else { return false };
    all.windows(words.len()).any(|window| {
        let (end, begin) = (&window[first.len()], &window[..first.len()]);
        begin == first && (end == last || end.strip_suffix('s') == Some(last))
    })
}

/// Parts of an identifier in lower case: `CallUp`, `call_up` and `CALL_UP` are `call`, `up`.
pub(super) fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut previous = '_';
    for c in identifier.chars() {
        let begins = c == '_' || c.is_uppercase() && !previous.is_uppercase();
        if begins && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if c != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(c.to_lowercase());
        }
        previous = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}
