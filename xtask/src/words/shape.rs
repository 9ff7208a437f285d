//! Limits the size of product files and functions.

use std::collections::BTreeSet;

use super::config::Shape;
use super::modules;
use super::source::{Language, Line, is_word};
use super::{Finding, SourceFile, is_below};

/// Comment that states why a function exceeds the limit.
const REASON: &str = "Long because:";

/// Product code of a Rust file: code lines, with inline test modules blanked.
#[derive(Debug)]
pub(super) struct ProductFile<'a> {
    pub(super) path: &'a str,
    lines: &'a [Line],
    /// As many as `lines`; `None` inside test modules.
    pub(super) code: Vec<Option<&'a str>>,
}

/// Findings of size and of mutual module use.
pub(super) fn check(shape: &Shape, files: &[SourceFile]) -> Vec<Finding> {
    let files = product_files(shape, files);
    let mut findings = Vec::new();
    for file in &files {
        findings.extend(file_size(shape, file));
        findings.extend(function_sizes(shape, file));
    }
    findings.extend(modules::check(shape, &files));
    findings
}

fn product_files<'a>(shape: &Shape, files: &'a [SourceFile]) -> Vec<ProductFile<'a>> {
    let sources = files.iter().filter(|file| {
        let is_product = file.path.starts_with("crates/") && file.path.contains("/src/");
        let is_tool = shape.not_product.iter().any(|prefix| file.path.starts_with(prefix.as_str()));
        file.language == Language::Rust && is_product && !is_tool
    });
    let sources: Vec<&SourceFile> = sources.collect();
    let tests: BTreeSet<String> = sources.iter().flat_map(|file| test_modules(file)).collect();
    let is_test = |path: &str| tests.iter().any(|test| path == format!("{test}.rs") || is_below(path, test));
    let products = sources.into_iter().filter(|file| !is_test(&file.path));
    products
        .map(|file| ProductFile { path: &file.path, lines: &file.lines, code: without_tests(&file.lines) })
        .collect()
}

/// Folder of the modules that a file declares.
fn module_folder(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    ["/mod", "/lib", "/main"].iter().find_map(|root| stem.strip_suffix(root)).unwrap_or(stem)
}

/// Paths, without ending, of the modules declared by `#[cfg(test)] mod name;`.
fn test_modules(file: &SourceFile) -> Vec<String> {
    let mut found = Vec::new();
    for at in test_attributes(&file.lines) {
        let declaration =
            next_code(&file.lines, at).and_then(|at| file.lines[at].code.trim().strip_suffix(';'));
        let name = declaration.and_then(|code| code.rsplit_once("mod ")).map(|(_, name)| name.trim());
        found.extend(name.map(|name| format!("{}/{name}", module_folder(&file.path))));
    }
    found
}

fn test_attributes(lines: &[Line]) -> impl Iterator<Item = usize> {
    lines.iter().enumerate().filter_map(|(at, line)| {
        let code = line.code.trim();
        (code.starts_with("#[cfg(test)") || code.starts_with("#[cfg(all(test")).then_some(at)
    })
}

/// Next line that has code and is no attribute.
fn next_code(lines: &[Line], at: usize) -> Option<usize> {
    (at + 1..lines.len()).find(|&at| {
        let code = lines[at].code.trim();
        !code.is_empty() && !code.starts_with("#[")
    })
}

fn without_tests(lines: &[Line]) -> Vec<Option<&str>> {
    let mut code: Vec<Option<&str>> = lines.iter().map(|line| Some(line.code.as_str())).collect();
    let all = code.clone();
    for at in test_attributes(lines) {
        let Some(begin) = next_code(lines, at) else { continue };
        let is_module = lines[begin].code.split_whitespace().any(|word| word == "mod");
        if is_module && let Some(end) = end_of_block(&all, begin, 0) {
            code[at..=end].fill(None);
        }
    }
    code
}

/// Line of the brace that closes the first block after this place; `None` if a `;` comes first.
fn end_of_block(code: &[Option<&str>], line: usize, column: usize) -> Option<usize> {
    let mut braces = 0_usize;
    let mut others = 0_usize;
    for (at, text) in code.iter().enumerate().skip(line) {
        let text = text.unwrap_or("");
        for c in text.get(if at == line { column } else { 0 }..).unwrap_or("").chars() {
            match c {
                '{' => braces += 1,
                '}' => {
                    braces = braces.saturating_sub(1);
                    if braces == 0 {
                        return Some(at);
                    }
                }
                '(' | '[' => others += 1,
                ')' | ']' => others = others.saturating_sub(1),
                ';' if braces == 0 && others == 0 => return None,
                _ => {}
            }
        }
    }
    None
}

fn file_size(shape: &Shape, file: &ProductFile<'_>) -> Option<Finding> {
    let count = file.code.iter().flatten().count() - usize::from(ends_with_newline(file));
    (count > shape.max_file_lines).then(|| Finding {
        file: file.path.to_owned(),
        line: 1,
        message: format!(
            "{count} lines without tests: split the file by job, at most {} lines",
            shape.max_file_lines
        ),
    })
}

/// The splitter adds an empty line after the last newline.
fn ends_with_newline(file: &ProductFile<'_>) -> bool {
    file.lines.last() == Some(&Line::default())
}

fn function_sizes(shape: &Shape, file: &ProductFile<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, code) in file.code.iter().enumerate() {
        for (column, name) in functions(code.unwrap_or("")) {
            let Some(end) = end_of_block(&file.code, at, column) else { continue };
            let count = end - at + 1;
            if count > shape.max_function_lines && !has_reason(file.lines, at) {
                let limit = shape.max_function_lines;
                let message = format!(
                    "function `{name}` has {count} lines: split it, at most {limit} lines, or state why above it with `// {REASON} …`"
                );
                findings.push(Finding { file: file.path.to_owned(), line: at + 1, message });
            }
        }
    }
    findings
}

/// Columns and names of the functions that a line declares.
pub(super) fn functions(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices("fn ").filter_map(|(at, _)| {
        let begins = !code[..at].ends_with(is_word);
        let name = code[at + 3..].split(|c| !is_word(c)).next().filter(|name| !name.is_empty())?;
        begins.then_some((at, name))
    })
}

/// Whether the comments and attributes directly above the function state a reason.
fn has_reason(lines: &[Line], function: usize) -> bool {
    let above = lines[..function].iter().rev().take_while(|line| {
        let code = line.code.trim();
        line.comment.is_some() && code.is_empty() || code.starts_with("#[")
    });
    let mut comments = above.filter_map(|line| line.comment.as_ref());
    comments.any(|comment| comment.text.trim_start().starts_with(REASON))
}
