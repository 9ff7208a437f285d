//! Checks `docs/conformance.md`, the table of requirements and the tests that show them.
//!
//! The document defines the format of a row. This check enforces it, so that a row which says "shown" leads to a test that
//! exists and runs.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Component, Path};
use std::process::ExitCode;

use crate::test_functions::{Function, functions};

const DOCUMENT: &str = "docs/conformance.md";
const HEADER: [&str; 3] = ["id", "requirement", "shown by"];
const NOT_YET: &str = "not yet";

/// Checks the document of the repository at `root` and prints what it found.
pub(crate) fn run(root: &Path) -> ExitCode {
    let text = match std::fs::read_to_string(root.join(DOCUMENT)) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{DOCUMENT}: cannot be read ({error}); restore it, the check needs it");
            return ExitCode::FAILURE;
        }
    };
    let report = check(&text, |path| std::fs::read_to_string(root.join(path)));
    print!("{}", report.summary());
    for problem in &report.problems {
        eprintln!("{DOCUMENT}:{problem}");
    }
    if report.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        eprintln!("{} problem(s) in {DOCUMENT}", report.problems.len());
        ExitCode::FAILURE
    }
}

/// Result of the check.
#[derive(Debug, Default)]
struct Report {
    /// In the order of the document.
    sections: Vec<Section>,
    /// In the order of the document.
    problems: Vec<Problem>,
}

/// Rows of one specification.
#[derive(Debug)]
struct Section {
    /// The line of its heading.
    line: usize,
    /// Three digits; every id of the section begins with them.
    number: String,
    /// The rest of the heading.
    title: String,
    /// All rows, the shown ones included.
    rows: usize,
    /// Rows that name at least one test.
    shown: usize,
}

/// A problem in the document, or in a test it names.
#[derive(Debug)]
struct Problem {
    line: usize,
    /// Describes the problem and its solution.
    what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

impl Report {
    fn summary(&self) -> String {
        let rows = self.sections.iter().map(|s| s.rows).sum();
        let shown = self.sections.iter().map(|s| s.shown).sum();
        let mut text = format!("{:>5} {:>6} {:>8}  section\n", "rows", "shown", "not yet");
        for section in &self.sections {
            text += &line(section.rows, section.shown, &format!("{} {}", section.number, section.title));
        }
        text + &line(rows, shown, "all")
    }
}

fn line(rows: usize, shown: usize, name: &str) -> String {
    format!("{rows:>5} {shown:>6} {:>8}  {name}\n", rows - shown)
}

/// Checks the text of the document. `read` gives the text of a file by its path from the repository's root.
fn check(text: &str, read: impl Fn(&str) -> io::Result<String>) -> Report {
    let mut checker = Checker { read, report: Report::default(), ids: HashMap::new(), files: HashMap::new() };
    checker.document(text);
    checker.report
}

struct Checker<R> {
    read: R,
    report: Report,
    /// The line on which each id was first used.
    ids: HashMap<String, usize>,
    /// The functions of each file named so far, or why it cannot be read; each file is read once.
    files: HashMap<String, Result<Vec<Function>, String>>,
}

impl<R: Fn(&str) -> io::Result<String>> Checker<R> {
    fn document(&mut self, text: &str) {
        let mut code_since = None;
        let mut in_section = false;
        let mut in_table = false;
        for (index, raw) in text.lines().enumerate() {
            let (line, raw) = (index + 1, raw.trim());
            if raw.starts_with("```") {
                code_since = if code_since.is_some() { None } else { Some(line) };
            } else if code_since.is_some() {
                // An example of a row is not a row.
            } else if let Some(heading) = raw.strip_prefix("## ") {
                in_section = self.heading(line, heading);
            } else if raw.starts_with('|') {
                if in_section {
                    self.row(line, raw);
                } else {
                    self.problem(
                        line,
                        "a table row outside a section; put it below a heading `## 000 Title`",
                    );
                }
            } else if in_table && !raw.is_empty() && !raw.starts_with('#') {
                self.problem(
                    line,
                    "Markdown makes text directly below a table a row of it; begin it with `|` or leave a blank line",
                );
            }
            in_table = code_since.is_none() && raw.starts_with('|');
        }
        if let Some(line) = code_since {
            self.problem(
                line,
                "this code block is never closed and hides all rows below it; close it with ```",
            );
        }
        if self.report.sections.is_empty() {
            self.problem(1, "no section found; a section begins with a heading `## 000 Title`");
        }
        let empty: Vec<usize> = self.report.sections.iter().filter(|s| s.rows == 0).map(|s| s.line).collect();
        for line in empty {
            self.problem(line, "a section without rows; add its rows or remove it");
        }
        self.report.problems.sort_by_key(|problem| problem.line);
    }

    /// Opens the section of `## 000 Title`; false if the heading opens none.
    fn heading(&mut self, line: usize, heading: &str) -> bool {
        let (number, title) = heading.split_once(' ').unwrap_or((heading, ""));
        if number.len() != 3 || !is_number(number) {
            return false;
        }
        if self.report.sections.iter().any(|section| section.number == number) {
            self.problem(line, format!("section {number} exists already; put these rows there"));
        }
        let (number, title) = (number.to_owned(), title.trim().to_owned());
        self.report.sections.push(Section { line, number, title, rows: 0, shown: 0 });
        true
    }

    fn row(&mut self, line: usize, raw: &str) {
        let cells = cells(raw);
        if cells == HEADER || cells.iter().all(|cell| is_rule(cell)) {
            return;
        }
        let is_shown = self.cells(line, &cells);
        if let Some(section) = self.report.sections.last_mut() {
            section.rows += 1;
            section.shown += usize::from(is_shown);
        }
    }

    /// Checks the cells of a row; true if it names tests and all of them hold.
    fn cells(&mut self, line: usize, cells: &[&str]) -> bool {
        let &[id, requirement, shown_by] = cells else {
            let found = cells.len();
            self.problem(
                line,
                format!(
                    "a row has three cells, `| id | requirement | shown by |`, and this one has {found}; \
                     a | inside a cell is written \\|, and the row ends with |"
                ),
            );
            return false;
        };
        self.id(line, id);
        if requirement.is_empty() {
            self.problem(line, format!("{id}: the requirement is empty; say what must hold"));
        }
        if shown_by == NOT_YET {
            return false;
        }
        let mut is_shown = true;
        for reference in shown_by.split("<br>") {
            if let Err(what) = self.reference(reference.trim()) {
                self.problem(line, format!("{id}: {what}"));
                is_shown = false;
            }
        }
        is_shown
    }

    fn id(&mut self, line: usize, id: &str) {
        let section = self.report.sections.last().map_or_else(String::new, |section| section.number.clone());
        match id.split_once('-') {
            Some((prefix, number)) if is_number(prefix) && is_number(number) && !number.starts_with('0') => {
                if prefix != section {
                    self.problem(
                        line,
                        format!(
                            "{id} stands in section {section}; move the row or give it an id {section}-…"
                        ),
                    );
                }
            }
            _ => self.problem(line, format!("`{id}` is no id; write one like {section}-12")),
        }
        if let Some(first) = self.ids.get(id) {
            let what = format!("{id} is used already on line {first}; give this row the next free number");
            self.problem(line, what);
        } else {
            self.ids.insert(id.to_owned(), line);
        }
    }

    /// Checks one entry of the cell `shown by`; the error says what is wrong and what to do.
    fn reference(&mut self, reference: &str) -> Result<(), String> {
        let (path, name) = parse_reference(reference).ok_or_else(|| {
            format!(
                "`shown by` is `{NOT_YET}`, or references `path/from/root.rs::test_name` in backticks, \
                 separated by <br>; correct: {reference}"
            )
        })?;
        let read = &self.read;
        let file = self.files.entry(path.to_owned()).or_insert_with(|| match read(path) {
            Ok(source) => Ok(functions(&source)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err("does not exist".to_owned()),
            Err(error) => Err(format!("cannot be read ({error})")),
        });
        let all = match file {
            Ok(all) => all,
            Err(why) => return Err(format!("{path} {why}; correct the path or write `{NOT_YET}`")),
        };
        // One file may have the same name in several modules; the test among them is meant.
        let named: Vec<&Function> = all.iter().filter(|function| function.name == name).collect();
        if named.is_empty() {
            return Err(format!("{path} has no function {name}; correct the name or write `{NOT_YET}`"));
        }
        // A number is shown by its benchmark: a test with a stopwatch would only show how busy the machine is.
        if path.starts_with("bench/") || path.contains("/bench/") || path == "xtask/src/coverage.rs" {
            return Ok(());
        }
        if !named.iter().any(|function| function.is_test) {
            return Err(format!(
                "{name} in {path} is no test; put #[test] directly above it or name the test that calls it"
            ));
        }
        if named.iter().any(|function| function.is_test && function.is_ignored) {
            return Err(format!(
                "{name} in {path} is ignored and shows nothing; remove #[ignore] or write `{NOT_YET}`"
            ));
        }
        Ok(())
    }

    fn problem(&mut self, line: usize, what: impl Into<String>) {
        self.report.problems.push(Problem { line, what: what.into() });
    }
}

/// The cells between the bars of a row, trimmed. `\|` is no bar. A row that does not end with a bar has, for
/// this check, one cell too few.
fn cells(row: &str) -> Vec<&str> {
    let mut cells = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, c) in row.char_indices() {
        if c == '|' && !escaped {
            if at > 0 {
                cells.push(row[start..at].trim());
            }
            start = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    cells
}

/// Whether a cell is part of the line between header and rows: `---`, `:--`, `--:`.
fn is_rule(cell: &str) -> bool {
    cell.contains('-') && cell.chars().all(|c| c == '-' || c == ':')
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Path and function name of `` `path/from/root.rs::name` ``. The path stays inside the repository.
fn parse_reference(reference: &str) -> Option<(&str, &str)> {
    let (path, name) = reference.strip_prefix('`')?.strip_suffix('`')?.split_once("::")?;
    let is_inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let is_name = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_alphanumeric());
    (is_inside && path.ends_with(".rs") && is_name).then_some((path, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        #[test]
        fn runs() {}
        #[test]
        #[ignore = \"slow\"]
        fn is_ignored() {}
        fn helps() {}
    ";

    /// Checks a document whose tests may be in `src/a.rs`; `bench/src/a.rs` is the same.
    fn check_text(text: &str) -> Report {
        check(text, |path| match path {
            "src/a.rs" | "bench/src/a.rs" => Ok(SOURCE.to_owned()),
            "src/broken.rs" => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        })
    }

    /// A document of one section with these rows; the first row is on line 5.
    fn document(rows: &str) -> String {
        format!("## 000 Title\n\n| id | requirement | shown by |\n| --- | :-: | --: |\n{rows}\n")
    }

    /// The only problem of these rows.
    fn problem(rows: &str) -> String {
        let report = check_text(&document(rows));
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        report.problems[0].to_string()
    }

    #[test]
    fn a_good_table_has_no_problems_and_is_counted_by_section() {
        let text = document(
            "| 000-1 | holds \\| stands | `src/a.rs::runs`<br> `src/a.rs::runs` |\n| 000-3 | later | not yet |",
        ) + "\n### Part\n\n| id | requirement | shown by |\n|---|---|---|\n| 000-2 | b | not yet |\n"
            + "\n## 001 Other: thing\n\n| 001-1 | c | `src/a.rs::runs` |\n\n## Not requirements\n\n- text\n";
        let report = check_text(&text);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(
            report.summary(),
            " rows  shown  not yet  section\n    3      1        2  000 Title\n    1      1        0  001 Other: thing\n    4      2        2  all\n"
        );
    }

    #[test]
    fn a_missing_file_is_named_with_the_line_and_what_to_do() {
        assert_eq!(
            problem("| 000-1 | a | not yet |\n| 000-2 | b | `src/gone.rs::runs` |"),
            "6: 000-2: src/gone.rs does not exist; correct the path or write `not yet`"
        );
        assert!(problem("| 000-1 | a | `src/broken.rs::runs` |").contains("cannot be read"));
    }

    #[test]
    fn a_missing_function_is_a_problem_and_its_row_is_not_shown() {
        let row = "| 000-1 | a | `src/a.rs::runs`<br>`src/a.rs::walks` |";
        assert!(problem(row).contains("src/a.rs has no function walks"));
        assert_eq!(check_text(&document(row)).sections[0].shown, 0);
    }

    #[test]
    fn a_function_that_is_no_test_or_is_ignored_shows_nothing() {
        assert!(problem("| 000-1 | a | `src/a.rs::helps` |").contains("helps in src/a.rs is no test"));
        assert!(problem("| 000-1 | a | `src/a.rs::is_ignored` |").contains("is ignored"));
    }

    #[test]
    fn a_benchmark_shows_a_number_without_being_a_test() {
        assert_eq!(check_text(&document("| 000-1 | a | `bench/src/a.rs::helps` |")).sections[0].shown, 1);
        assert!(problem("| 000-1 | a | `bench/src/a.rs::walks` |").contains("has no function walks"));
    }

    #[test]
    fn an_id_is_used_once_in_its_own_section_and_well_formed() {
        let twice = problem("| 000-1 | a | not yet |\n| 000-1 | b | not yet |");
        assert!(twice.starts_with("6: 000-1 is used already on line 5"), "{twice}");
        assert!(problem("| 001-1 | a | not yet |").contains("001-1 stands in section 000"));
        for id in ["", "1", "000-", "000-01", "000-1a", "a-1"] {
            assert!(problem(&format!("| {id} | a | not yet |")).contains("is no id"), "{id}");
        }
    }

    #[test]
    fn a_row_has_three_cells() {
        for row in ["| 000-1 | a |", "| 000-1 | a | b | not yet |", "| 000-1 | a | not yet"] {
            assert!(problem(row).starts_with("5: a row has three cells"), "{row}");
        }
        assert!(problem("| 000-1 |  | not yet |").contains("requirement is empty"));
    }

    #[test]
    fn the_last_cell_is_not_yet_or_references() {
        for shown_by in [
            "",
            "soon",
            "Not yet",
            "not yet<br>`src/a.rs::runs`",
            "src/a.rs::runs",
            "`src/a.rs`",
            "`src/a.rs::tests::runs`",
            "`/src/a.rs::runs`",
            "`../src/a.rs::runs`",
            "`src/a.txt::runs`",
        ] {
            assert!(problem(&format!("| 000-1 | a | {shown_by} |")).contains("`shown by` is"), "{shown_by}");
        }
    }

    #[test]
    fn malformed_rows_are_reported() {
        assert!(problem("| 000-1 | a | not yet |\n000-2 | b | not yet |").starts_with("6: Markdown"));
        assert!(
            problem("| 000-1 | a | not yet |\n\n## Title\n\n| 000-2 | b | not yet |").contains("outside")
        );
        assert!(problem("| 000-1 | a | not yet |\n\n```\n| 000-2 | b | not yet |").contains("never closed"));
        assert!(problem("").contains("without rows"));
        assert!(
            problem("| 000-1 | a | not yet |\n\n## 000 Again\n| 000-2 | b | not yet |").contains("exists")
        );
        assert!(check_text("").problems[0].what.contains("no section"));
    }
}
