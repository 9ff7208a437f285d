//! Finds sentences that begin with a riddle: "The same …", "Who …", "What is …".

use super::config::{Config, Opening};
use super::source::{Comment, Marker};
use super::{Finding, SourceFile};

/// Findings in the comments or the text of a file.
pub(super) fn check(config: &Config, file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for paragraph in paragraphs(file) {
        for sentence in paragraph.sentences() {
            findings.extend(config.openings.iter().find_map(|opening| {
                let shown = begins_with(&sentence.text, opening)?;
                let message = format!("sentence begins with \"{shown}\": {}", opening.instead);
                Some(Finding { file: file.path.clone(), line: sentence.line, message })
            }));
        }
    }
    findings
}

/// The words of the opening if the sentence begins with them and is not a question.
fn begins_with<'a>(sentence: &str, opening: &'a Opening) -> Option<&'a str> {
    let rest = sentence.strip_prefix(opening.words.as_str())?;
    let ends = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '\'');
    (ends && !sentence.ends_with('?')).then_some(opening.words.as_str())
}

#[derive(Debug, PartialEq, Eq)]
struct Sentence {
    line: usize,
    text: String,
}

/// Consecutive lines of prose.
#[derive(Debug, Default)]
struct Paragraph {
    /// Line numbers and texts.
    lines: Vec<(usize, String)>,
}

impl Paragraph {
    fn sentences(&self) -> Vec<Sentence> {
        let mut sentences = Vec::new();
        let mut current: Option<Sentence> = None;
        for (line, text) in &self.lines {
            for word in text.split_whitespace() {
                let sentence = current.get_or_insert_with(|| Sentence { line: *line, text: String::new() });
                if !sentence.text.is_empty() {
                    sentence.text.push(' ');
                }
                let start = sentence.text.is_empty();
                sentence.text.push_str(if start {
                    word.trim_start_matches(['*', '_', '(', '[', '"', '“'])
                } else {
                    word
                });
                let bare = word.trim_end_matches(['*', '_', ')', '"', '”', '`']);
                if bare.ends_with(['.', '!', '?', ':', ';']) && !ABBREVIATIONS.contains(&bare) {
                    sentence.text.truncate(sentence.text.len() - (word.len() - bare.len()));
                    sentences.extend(current.take());
                }
            }
        }
        sentences.extend(current);
        sentences
    }
}

const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "etc.", "vs."];

/// Paragraphs of the comments of a file: blocks end at blank lines, list items, headings, table cells and code.
fn paragraphs(file: &SourceFile) -> Vec<Paragraph> {
    let mut paragraphs = vec![Paragraph::default()];
    let mut previous: Option<Marker> = None;
    let mut fenced = false;
    for (index, line) in file.lines.iter().enumerate() {
        let Some(Comment { marker, text }) = &line.comment else {
            previous = None;
            fenced = false;
            paragraphs.push(Paragraph::default());
            continue;
        };
        if previous != Some(*marker) || *marker == Marker::Trailing {
            fenced = false;
            paragraphs.push(Paragraph::default());
        }
        previous = Some(*marker);
        let trimmed = text.trim();
        if trimmed.starts_with("```") {
            fenced = !fenced;
            paragraphs.push(Paragraph::default());
            continue;
        }
        if fenced {
            continue;
        }
        let (item, begins) = without_list_marker(trimmed);
        if begins || trimmed.is_empty() || trimmed.starts_with('|') {
            paragraphs.push(Paragraph::default());
        }
        if let Some(row) = trimmed.strip_prefix('|') {
            let cells = row.split('|').map(|cell| vec![(index + 1, cell.to_owned())]);
            paragraphs.extend(cells.map(|lines| Paragraph { lines }));
            paragraphs.push(Paragraph::default());
            continue;
        }
        if let Some(paragraph) = paragraphs.last_mut() {
            paragraph.lines.push((index + 1, item.to_owned()));
        }
        if trimmed.starts_with('#') {
            paragraphs.push(Paragraph::default()); // a heading ends with its line
        }
    }
    paragraphs
}

/// Text of a list item, quotation or heading, and whether the line is one.
fn without_list_marker(line: &str) -> (&str, bool) {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let item = ["- ", "* ", "+ ", "> "].iter().find_map(|marker| line.strip_prefix(marker));
    let numbered = (digits.len() < line.len()).then(|| digits.strip_prefix(". ")).flatten();
    let heading = line.starts_with('#').then(|| line.trim_start_matches('#').trim_start());
    match item.or(numbered).or(heading) {
        Some(text) => (text, true),
        None => (line, false),
    }
}
