//! Checks wording and shape of the whole repository: `cargo run -p xtask -- words [PATH...]`.
//!
//! `xtask/words.toml` lists sentence openings, retired names and limits of size. Every finding names the file, the line, the
//! pattern and its replacement, so the output can be used as a work list. With paths, only findings below them are printed.
//! The tables of `ARCHITECTURE.md` must name every module.

mod architecture;
mod config;
mod modules;
mod names;
mod prose;
mod shape;
mod source;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use config::Config;
use source::{Language, Line};

const CONFIG: &str = "xtask/words.toml";

/// Folders without sources of this repository.
const SKIPPED_FOLDERS: [&str; 2] = ["target", "node_modules"];

/// Folders with sources although a dot begins their name.
const DOT_FOLDERS: [&str; 2] = [".ci", ".github"];

/// A place to mend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Path from the root of the repository, with `/`.
    file: String,
    line: usize,
    /// States the pattern and what to write instead.
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A text file of the repository, split into lines of code, comments and literals.
#[derive(Debug)]
struct SourceFile {
    /// Path from the root of the repository, with `/`.
    path: String,
    language: Language,
    lines: Vec<Line>,
}

impl SourceFile {
    /// `None` if the file is of no language that the check knows.
    fn new(path: &str, text: &str) -> Option<Self> {
        let language = Language::of(path)?;
        Some(SourceFile { path: path.to_owned(), language, lines: source::split(language, text) })
    }
}

/// Checks the repository at `root` and prints the findings below `paths`, or all of them.
pub(crate) fn run(root: &Path, paths: &[&str]) -> ExitCode {
    match findings(root, paths) {
        Ok(findings) if findings.is_empty() => {
            println!("words: nothing to mend");
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                println!("{finding}");
            }
            eprintln!("{} findings; the patterns are listed in {CONFIG}", findings.len());
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn findings(root: &Path, paths: &[&str]) -> Result<Vec<Finding>, String> {
    let root = root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))?;
    let paths = paths.iter().map(|path| from_root(&root, path)).collect::<Result<Vec<_>, _>>()?;
    let text = fs::read_to_string(root.join(CONFIG)).map_err(|error| format!("{CONFIG}: {error}"))?;
    let config = Config::parse(&text).map_err(|why| format!("{CONFIG}: {why}"))?;
    let files = read_files(&root, &config).map_err(|error| error.to_string())?;
    let mut findings = check(&config, &files);
    findings.retain(|finding| paths.is_empty() || paths.iter().any(|path| is_below(&finding.file, path)));
    Ok(findings)
}

/// Checks all files together: the module rule compares the files of a crate.
fn check(config: &Config, files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(prose::check(config, file));
        findings.extend(names::check(config, file));
    }
    findings.extend(shape::check(&config.shape, files));
    findings.extend(architecture::check(files));
    findings.sort();
    findings.dedup();
    findings
}

/// Path of a command-line argument, relative to the root of the repository.
fn from_root(root: &Path, path: &str) -> Result<String, String> {
    let absolute = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
    let relative = absolute.strip_prefix(root).map_err(|_| format!("{path} is outside the repository"))?;
    Ok(with_slashes(relative))
}

fn is_below(file: &str, folder: &str) -> bool {
    folder.is_empty()
        || file.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn with_slashes(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

fn has_sources(folder: &str) -> bool {
    !SKIPPED_FOLDERS.contains(&folder) && (!folder.starts_with('.') || DOT_FOLDERS.contains(&folder))
}

fn read_files(root: &Path, config: &Config) -> io::Result<Vec<SourceFile>> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if has_sources(&name) {
                    folders.push(path);
                }
                continue;
            }
            let relative = with_slashes(path.strip_prefix(root).unwrap_or(&path));
            if Language::of(&relative).is_none() || config.is_skipped(&relative) {
                continue;
            }
            files.extend(SourceFile::new(&relative, &fs::read_to_string(&path)?));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
