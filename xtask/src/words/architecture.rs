//! Compares the tables of `ARCHITECTURE.md` with the crates: every file that they name exists, and every module is in them.
//!
//! A section `### crate, crate` has a table whose first column names files and folders. Names belong to the first crate of the heading,
//! or to `redrive-NAME` behind `NAME: `. A path such as `sqlite/writer.rs` holds for the names behind it in the same cell, and
//! then all modules of that folder must be named. The words `one file per` or `one folder per` stand for all modules of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Comment, Language};
use super::{Finding, SourceFile};

const PAGE: &str = "ARCHITECTURE.md";

/// Files that declare modules and are named in no table.
const ROOTS: [&str; 3] = ["lib", "main", "mod"];

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let mut tables = Tables::default();
    for (number, line) in (1..).zip(&page.lines) {
        if let Some(Comment { text, .. }) = &line.comment {
            tables.read(number, text);
        }
    }
    let mut findings = tables.missing_files(files);
    findings.extend(tables.missing_modules(files));
    findings
}

/// Names in the tables of the page.
#[derive(Default)]
struct Tables {
    /// Crates of the current heading, and its line.
    crates: Vec<String>,
    heading: usize,
    /// Files and folders (with a `/` at the end) from the root of the repository, with their lines.
    paths: Vec<(String, usize)>,
    /// Folders whose modules must all be named: their named modules, and the line of the heading.
    folders: BTreeMap<String, (BTreeSet<String>, usize)>,
    /// Source folders whose modules a row describes together.
    summarised: BTreeSet<String>,
}

impl Tables {
    fn read(&mut self, number: usize, text: &str) {
        if text.starts_with('#') {
            let names = text.strip_prefix("### ").unwrap_or_default();
            self.crates =
                names.split(", ").filter(|name| name.starts_with("redrive")).map(str::to_owned).collect();
            self.heading = number;
            for name in &self.crates {
                self.folders.insert(format!("crates/{name}/src/"), (BTreeSet::new(), number));
            }
        } else if let (Some(row), Some(first)) = (text.strip_prefix("| "), self.crates.first()) {
            let cell = row.split(" | ").next().unwrap_or(row);
            let (name, files) = match cell.split_once(": ") {
                Some((short, files)) => (format!("redrive-{short}"), files),
                None => (first.clone(), cell),
            };
            self.read_cell(number, &format!("crates/{name}/src/"), files);
        }
    }

    fn read_cell(&mut self, number: usize, source: &str, cell: &str) {
        if cell.contains("one file") || cell.contains("one folder") {
            self.summarised.insert(source.to_owned());
        }
        let mut folder = source.to_owned();
        for name in cell.split('`').skip(1).step_by(2) {
            let at = name.trim_end_matches('/').rfind('/').map_or(0, |at| at + 1);
            let (parent, last) = name.split_at(at);
            if !parent.is_empty() {
                self.name(source, parent.trim_end_matches('/'));
                folder = format!("{source}{parent}");
            }
            self.name(&folder, last.trim_end_matches('/').trim_end_matches(".rs"));
            self.paths.push((format!("{folder}{last}"), number));
        }
    }

    fn name(&mut self, folder: &str, module: &str) {
        let (modules, _) =
            self.folders.entry(folder.to_owned()).or_insert_with(|| (BTreeSet::new(), self.heading));
        modules.insert(module.to_owned());
    }

    fn missing_files(&self, files: &[SourceFile]) -> Vec<Finding> {
        let exists = |path: &str| {
            files.iter().any(|file| file.path == path || path.ends_with('/') && file.path.starts_with(path))
        };
        let missing = self.paths.iter().filter(|(path, _)| !exists(path));
        missing.map(|(path, line)| finding(*line, format!("`{path}` does not exist"))).collect()
    }

    fn missing_modules(&self, files: &[SourceFile]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (folder, (named, heading)) in &self.folders {
            if self.summarised.contains(folder) {
                continue;
            }
            let sources = files.iter().filter(|file| file.language == Language::Rust);
            let inside = sources.filter_map(|file| file.path.strip_prefix(folder.as_str()));
            let modules: BTreeSet<&str> =
                inside.filter_map(|path| path.split('/').next()?.split('.').next()).collect();
            let missing =
                modules.iter().filter(|module| !ROOTS.contains(module) && !named.contains(**module));
            findings.extend(missing.map(|module| {
                finding(
                    *heading,
                    format!("no table names module `{module}` of {folder}: say what its job is"),
                )
            }));
        }
        findings
    }
}

fn finding(line: usize, message: String) -> Finding {
    Finding { file: PAGE.to_owned(), line, message }
}
