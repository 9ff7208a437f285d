use std::path::Path;

use super::config::Config;
use super::{Finding, SourceFile, check, read_files};

const CONFIG: &str = include_str!("../../words.toml");

fn config() -> Config {
    Config::parse(CONFIG).expect("xtask/words.toml is valid")
}

fn findings(path: &str, text: &str) -> Vec<Finding> {
    check(&config(), &[SourceFile::new(path, text).expect("a known kind of file")])
}

/// Lines of the findings in a file.
fn lines(path: &str, text: &str) -> Vec<usize> {
    findings(path, text).iter().map(|finding| finding.line).collect()
}

fn crate_findings(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<SourceFile> =
        files.iter().map(|(path, text)| SourceFile::new(path, text).expect("Rust")).collect();
    check(&config(), &files).iter().map(ToString::to_string).collect()
}

#[test]
fn every_opening_fires_in_every_kind_of_comment() {
    for opening in &config().openings {
        let words = &opening.words;
        for (path, text) in [
            ("a.rs", format!("//! {words} other thing.\n")),
            ("a.rs", format!("/// Mechanism first. {words} other thing.\n")),
            ("a.rs", format!("fn a() {{}} // {words} other thing\n")),
            ("a.rs", format!("/* {words} other thing */\n")),
            ("a.sql", format!("-- {words} other thing.\n")),
            ("a.toml", format!("# {words} other thing.\n")),
            ("a.yml", format!("# {words} other thing.\n")),
            ("a.service", format!("# {words} other thing.\n")),
            ("a.md", format!("{words} other thing.\n")),
            ("a.md", format!("- {words} other thing.\n")),
            ("a.md", format!("## {words} other thing\n")),
            ("a.md", format!("| a | {words} other thing |\n")),
        ] {
            let found = findings(path, &text);
            assert!(found.iter().any(|finding| finding.line == 1), "{text:?} in {path}: {found:?}");
            assert!(found.iter().any(|finding| finding.message.contains(words.as_str())), "{found:?}");
        }
    }
}

#[test]
fn ordinary_sentences_are_not_found() {
    for text in [
        "/// The limiter delays a delivery that exceeds the same limit. It knows who sent it and what is due.",
        "/// Whose lease ended is settled by the fence. Whatever fails is retried. Whole batches commit together.",
        "/// Who calls this?\n/// What is a delivery, and who claims it?",
        "//! Somebodys. Whatis. The samegroup.",
        "let a = \"The same. Who calls. What is this.\";",
        "/// Text.\n/// ```\n/// // The same\n/// Who\n/// ```",
    ] {
        assert_eq!(findings("a.rs", text), [], "{text}");
    }
    assert_eq!(findings("a.md", "Text.\n\n```\nThe same\nWho\n```\n"), []);
    assert_eq!(findings("a.toml", "title = \"x # The same\"\nkey = 'Who'\n"), []);
    assert_eq!(findings("a.sql", "SELECT 1; -- one row\n"), []);
}

#[test]
fn a_sentence_is_reported_at_the_line_it_begins_on() {
    assert_eq!(lines("a.rs", "/// One thing\n/// ends here. Who\n/// calls is recorded.\nfn a() {}\n"), [2]);
    assert_eq!(lines("a.md", "One thing\nends here.\n\nWho calls\n"), [4]);
}

#[test]
fn every_retired_name_fires_where_it_applies() {
    use super::config::Pattern;
    for rule in &config().retired {
        let folders = ["redrive", "redrive-store", "redrive-webhook", "redrive-scheduler", "redrive-server"];
        let folder =
            folders.iter().map(|name| format!("crates/{name}/src/")).find(|path| rule.applies_to(path));
        let folder = folder.unwrap_or_else(|| panic!("{rule:?} applies nowhere"));
        let (path, text) = match &rule.pattern {
            Pattern::Name(parts) => (format!("{folder}a.rs"), format!("fn do_{}s() {{}}", parts.join("_"))),
            Pattern::Exact(name) => (format!("{folder}a.rs"), format!("type A = x::{name}<B>;")),
            Pattern::Phrase(words) => (format!("{folder}a.rs"), format!("// it is {} here", words.join(" "))),
            Pattern::File(name) => (format!("{folder}{name}.rs"), String::new()),
        };
        let found = findings(&path, &text);
        assert!(found.iter().any(|finding| finding.message.contains(&rule.instead)), "{rule:?}: {found:?}");
    }
}

#[test]
fn names_are_found_in_every_case_style_and_in_strings() {
    for text in [
        "struct LookAgain;",
        "const MIN_LOOK_AGAIN: u8 = 1;",
        "let x = \"look_again\";",
        "/// [`Self::look_again`]",
    ] {
        assert_eq!(lines("crates/redrive/src/a.rs", text), [1], "{text}");
    }
    assert_eq!(lines("a.md", "```rust\nbus.look_again();\n```\n"), [2]);
}

#[test]
fn retired_phrases_are_found_in_identifiers_too() {
    for text in [
        "let under_way = 1;",
        "let given_up = 1;",
        "struct SentBack;",
        "fn put_off() {}",
        "fn ends_in_silence() {}",
        "let _room = permit;",
        "struct Known;",
        "let wish = 1;",
    ] {
        assert_eq!(lines("crates/redrive-torture/src/a.rs", text), [1], "{text}");
    }
    assert_eq!(lines("crates/redrive-server/src/a.rs", "let place = 1;"), [1]);
    assert_eq!(findings("a.md", "The room is known in this place; a notice."), []);
}

#[test]
fn words_that_contain_a_retired_name_are_not_found() {
    for text in [
        "struct Planes; // planet, desktop, operate, several, company",
        "use std::marker::PhantomData;",
        "// the endpoint is known; the window of the breaker; a notice in the log; the room was left aside",
        "let keep_alive = true;",
        "let shelled = 1; let upheld = 2;",
    ] {
        assert_eq!(findings("crates/redrive-server/src/a.rs", text), [], "{text}");
    }
}

#[test]
fn riddles_in_test_names_are_found_and_other_functions_are_free() {
    let found = findings(
        "a.rs",
        "#[test]\nfn who_waits_is_woken() {}\n#[tokio::test(start_paused = true)]\nasync fn what_is_x() {}\n",
    );
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 4], "{found:?}");
    assert_eq!(findings("a.rs", "fn who_am_i() {}\n#[test]\nfn whole_batches_commit() {}\n"), []);
}

fn function(lines: usize) -> String {
    format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
}

#[test]
fn a_long_function_needs_a_reason_directly_above() {
    let path = "crates/redrive/src/a.rs";
    assert_eq!(findings(path, &function(80)), []);
    assert_eq!(lines(path, &function(81)), [1]);
    for reason in
        ["// Long because: one list.\n", "/// Runs.\n///\n/// Long because: one list.\n#[must_use]\n"]
    {
        assert_eq!(findings(path, &format!("{reason}{}", function(81))), [], "{reason}");
    }
    assert_eq!(lines(path, &format!("// Long because: one list.\n\n{}", function(81))), [3]);
    assert_eq!(findings("crates/redrive/tests/a.rs", &function(81)), []);
    assert_eq!(findings("crates/redrive-torture/src/a.rs", &function(81)), []);
}

#[test]
fn test_modules_do_not_count() {
    let path = "crates/redrive/src/a.rs";
    assert_eq!(lines(path, &"use x;\n".repeat(501)), [1]);
    assert_eq!(findings(path, &"use x;\n".repeat(500)), []);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(200));
    assert_eq!(findings(path, &format!("{}{tests}", "use x;\n".repeat(490))), []);
    let declared = ("crates/redrive/src/b/mod.rs", "#[cfg(test)]\nmod checks;\n");
    let long = function(200);
    assert_eq!(crate_findings(&[declared, ("crates/redrive/src/b/checks.rs", &long)]), [""; 0]);
}

#[test]
fn modules_that_use_each_other_are_found() {
    let found = crate_findings(&[
        ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::{First, Second as Other};\n"),
        ("crates/x/src/a.rs", "use crate::{c, b::{Inner, a}};\n"),
        ("crates/x/src/b/mod.rs", "mod inner;\n"),
        ("crates/x/src/b/inner.rs", "fn f() { super::super::a::g() }\n"),
        ("crates/x/src/c.rs", "use crate::Other;\n"),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("crates/x/src/a.rs:1: modules `a` and `b` of x"), "{found:?}");
    assert!(found[0].contains("crates/x/src/b/inner.rs:1"), "{found:?}");
    assert!(found[1].contains("`a` and `c`"), "{found:?}");
}

#[test]
fn modules_of_a_folder_that_use_each_other_are_found() {
    let found = crate_findings(&[
        ("crates/x/src/lib.rs", "mod a;\n"),
        ("crates/x/src/a.rs", "mod b;\nmod c;\nmod d;\npub use d::Last;\n"),
        ("crates/x/src/a/b.rs", "use super::c::C;\nuse crate::a::Last;\n"),
        ("crates/x/src/a/c.rs", "use crate::a::b;\n"),
        ("crates/x/src/a/d/mod.rs", "mod e;\nuse super::A;\n"),
        ("crates/x/src/a/d/e.rs", "use super::super::b::B;\n"),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("`a::b` and `a::c`") && found[1].contains("`a::b` and `a::d`"), "{found:?}");
}

#[test]
fn an_allowed_pair_without_mutual_use_is_found() {
    let found = crate_findings(&[
        ("crates/redrive/src/bus.rs", "use crate::publish;\n"),
        ("crates/redrive/src/publish.rs", ""),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("remove the entry"), "{found:?}");
}

#[test]
fn one_way_uses_and_allowed_pairs_are_not_found() {
    let one_way = [("crates/x/src/a.rs", "use crate::b::B;\n"), ("crates/x/src/b.rs", "use super::c;\n")];
    assert_eq!(crate_findings(&one_way), [""; 0]);
    let in_tests = [
        ("crates/x/src/a.rs", "use crate::b::B;\n"),
        ("crates/x/src/b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
    ];
    assert_eq!(crate_findings(&in_tests), [""; 0]);
    let allowed = [
        ("crates/redrive/src/bus.rs", "use crate::publish;\n"),
        ("crates/redrive/src/publish.rs", "use crate::bus;\n"),
    ];
    assert_eq!(crate_findings(&allowed), [""; 0]);
}

#[test]
fn the_folders_of_continuous_integration_are_checked_and_other_dot_folders_are_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = read_files(&root, &config()).unwrap();
    let begins = |prefix: &str| files.iter().any(|file| file.path.starts_with(prefix));
    for path in [
        ".ci/run",
        ".github/workflows/ci.yml",
        ".github/pull_request_template.md",
        "examples/serve/redrive.service",
    ] {
        assert!(begins(path), "{path}");
    }
    assert!(!begins(".git/") && !begins("target/"));
}

#[test]
fn the_architecture_names_every_module_and_no_missing_file() {
    let page = "## Crates\n\n### redrive-x, redrive-y\n\n| files | job |\n|---|---|\n\
                | `a.rs`, `gone.rs`, `b/` | one |\n| `sql/one.rs`, `lost.rs` | two |\n| y: one file per thing | three |\n";
    let sources = ["x/src/lib.rs", "x/src/a.rs", "x/src/a/inner.rs", "x/src/b/mod.rs", "x/src/c.rs"];
    let sources =
        sources.into_iter().chain(["x/src/sql/one.rs", "x/src/sql/two.rs", "y/src/d.rs", "z/src/e.rs"]);
    let sources = sources.map(|path| (format!("crates/redrive-{path}"), ""));
    let files: Vec<_> = sources.chain([("ARCHITECTURE.md".to_owned(), page)]).collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    assert_eq!(
        crate_findings(&files),
        [
            "ARCHITECTURE.md:3: no table names module `c` of crates/redrive-x/src/: say what its job is",
            "ARCHITECTURE.md:3: no table names module `two` of crates/redrive-x/src/sql/: say what its job is",
            "ARCHITECTURE.md:7: `crates/redrive-x/src/gone.rs` does not exist",
            "ARCHITECTURE.md:8: `crates/redrive-x/src/sql/lost.rs` does not exist",
        ]
    );
}

#[test]
fn a_wrong_configuration_says_which_entry() {
    let wrong = "opening = []\nretired = [{ nam = \"x\", instead = \"y\" }]\n[shape]\nmax_file_lines = 1\nmax_function_lines = 1\nmutual_modules = []\n";
    assert!(Config::parse(wrong).unwrap_err().contains("no pattern"));
    assert!(Config::parse("opening = []\nretired = []\n").unwrap_err().contains("[shape]"));
}
