//! Splits source text into code, comments and literals, line by line.

/// How comments are written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    /// `--` begins a comment.
    Sql,
    /// `#` begins a comment: TOML, YAML, systemd units, Makefile, shell, Python.
    Hash,
    /// `//` begins a comment: JavaScript, TypeScript, protobuf.
    Slashes,
    Markdown,
}

impl Language {
    /// Language of a file by its name; `None` for a file that is not checked.
    pub(super) fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.').map_or(name, |(_, ending)| ending) {
            "rs" => Some(Language::Rust),
            "sql" => Some(Language::Sql),
            "toml" | "yml" | "service" | "sh" | "py" | "Makefile" | "Containerfile" | "run" => {
                Some(Language::Hash)
            }
            "mjs" | "js" | "ts" | "proto" => Some(Language::Slashes),
            "md" => Some(Language::Markdown),
            _ => None,
        }
    }
}

/// Comment marker, or `Text` for the prose of Markdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Text,
    Plain,
    Outer,
    Inner,
    /// A comment behind code.
    Trailing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Comment {
    pub(super) marker: Marker,
    /// Text without its marker; inner indentation is kept.
    pub(super) text: String,
}

/// Parts of one line.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Code with the contents of literals left out.
    pub(super) code: String,
    pub(super) comment: Option<Comment>,
    /// Contents of strings.
    pub(super) literal: String,
}

/// Splits a text of this language into the parts of its lines.
pub(super) fn split(language: Language, text: &str) -> Vec<Line> {
    match language {
        Language::Rust => split_rust(text),
        Language::Sql => text.lines().map(|line| split_at(line, "--")).collect(),
        Language::Hash => text.lines().map(|line| split_at(line, "#")).collect(),
        Language::Slashes => text.lines().map(|line| split_at(line, "//")).collect(),
        Language::Markdown => split_markdown(text),
    }
}

/// Splits a line at the first comment marker outside quotes.
fn split_at(line: &str, marker: &str) -> Line {
    let mut quote = None;
    let mut previous = ' ';
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if previous.is_whitespace() && line[at..].starts_with(marker) => {
                let (code, comment) = line.split_at(at);
                let text = comment.trim_start_matches(['#', '-', '/', '!']).to_owned();
                let marker = if code.trim().is_empty() { Marker::Plain } else { Marker::Trailing };
                let comment = Some(Comment { marker, text });
                return Line { code: code.to_owned(), comment, literal: String::new() };
            }
            None if c == '"' || c == '\'' && !previous.is_alphanumeric() => quote = Some(c),
            None => {}
        }
        previous = c;
    }
    Line { code: line.to_owned(), ..Line::default() }
}

/// Prose outside fenced blocks, code inside them.
fn split_markdown(text: &str) -> Vec<Line> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            lines.push(Line::default());
        } else if fenced {
            lines.push(Line { code: line.to_owned(), ..Line::default() });
        } else {
            let comment = Some(Comment { marker: Marker::Text, text: line.to_owned() });
            lines.push(Line { comment, ..Line::default() });
        }
    }
    lines
}

fn split_rust(text: &str) -> Vec<Line> {
    let mut splitter = RustSplitter { rest: text, lines: vec![Line::default()] };
    while splitter.step() {}
    splitter.lines
}

struct RustSplitter<'a> {
    rest: &'a str,
    lines: Vec<Line>,
}

impl RustSplitter<'_> {
    fn line(&mut self) -> &mut Line {
        if self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn step(&mut self) -> bool {
        if self.rest.starts_with("//") {
            self.line_comment();
            return true;
        }
        if self.rest.starts_with("/*") {
            self.block_comment();
            return true;
        }
        let starts_word = !self.line().code.chars().next_back().is_some_and(is_word);
        if starts_word && let Some(hashes) = raw_string(self.rest) {
            self.raw_literal(hashes);
            return true;
        }
        match self.next() {
            None => return false,
            Some('\n') => self.lines.push(Line::default()),
            Some('"') => self.literal('"'),
            Some('\'') if is_character(self.rest) => self.literal('\''),
            Some(c) => self.line().code.push(c),
        }
        true
    }

    fn line_comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let (comment, rest) = self.rest.split_at(end);
        let marker = match comment {
            _ if !self.line().code.trim().is_empty() => Marker::Trailing,
            _ if comment.starts_with("//!") => Marker::Inner,
            _ if comment.starts_with("///") => Marker::Outer,
            _ => Marker::Plain,
        };
        let text = comment.trim_start_matches('/').trim_start_matches('!').to_owned();
        self.rest = rest;
        self.line().comment = Some(Comment { marker, text });
    }

    /// Nested block comments; each line becomes a plain comment.
    fn block_comment(&mut self) {
        let mut depth = 0;
        let mut text = String::new();
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.rest = &self.rest[2..];
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.rest = &self.rest[2..];
                if depth == 0 {
                    break;
                }
            } else {
                match self.next() {
                    None => break,
                    Some('\n') => {
                        let text = std::mem::take(&mut text);
                        self.line().comment = Some(Comment { marker: Marker::Plain, text });
                        self.lines.push(Line::default());
                    }
                    Some(c) => text.push(c),
                }
            }
        }
        self.line().comment = Some(Comment { marker: Marker::Plain, text });
    }

    /// After the opening quote.
    fn literal(&mut self, quote: char) {
        self.line().code.push(quote);
        while let Some(c) = self.next() {
            match c {
                _ if c == quote => break,
                '\\' => {
                    let escaped = self.next();
                    self.line().literal.push(' ');
                    if escaped == Some('\n') {
                        self.lines.push(Line::default());
                    }
                }
                '\n' => self.lines.push(Line::default()),
                c => self.line().literal.push(c),
            }
        }
        self.line().literal.push(' ');
        self.line().code.push(quote);
    }

    fn raw_literal(&mut self, hashes: usize) {
        let open = self.rest.find('"').unwrap_or_default() + 1;
        self.rest = &self.rest[open..];
        let close = format!("\"{}", "#".repeat(hashes));
        let end = self.rest.find(&close).unwrap_or(self.rest.len());
        let (body, rest) = self.rest.split_at(end);
        self.rest = rest.strip_prefix(&close).unwrap_or(rest);
        self.line().code.push_str("\"\"");
        for (number, line) in body.split('\n').enumerate() {
            if number > 0 {
                self.lines.push(Line::default());
            }
            self.line().literal.push_str(line);
        }
        self.line().literal.push(' ');
    }
}

/// Number of `#` if a raw string begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let body = ["r", "br", "cr"].iter().find_map(|prefix| {
        let body = rest.strip_prefix(prefix)?;
        body.starts_with(['"', '#']).then_some(body)
    })?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    body[hashes..].starts_with('"').then_some(hashes)
}

/// Whether a character literal, and not a lifetime, follows the `'`.
fn is_character(rest: &str) -> bool {
    let mut ahead = rest.chars();
    let (first, second) = (ahead.next(), ahead.next());
    first == Some('\\') || second == Some('\'')
}

pub(super) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Identifiers and words of a text, in order.
pub(super) fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c)).filter(|word| word.starts_with(|c: char| c == '_' || c.is_alphabetic()))
}
