//! Finds pairs of sibling modules that use each other, at every level of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::config::Shape;
use super::shape::ProductFile;
use super::source::is_word;

/// Uses inside one crate: the using module, the used module, and the first place.
type Uses = BTreeMap<(String, String), (String, usize)>;

/// Two modules that use each other, in alphabetical order, with the place of each use.
type MutualUse = ([String; 2], [(String, usize); 2]);

/// Findings of mutual use that the configuration does not allow.
pub(super) fn check(shape: &Shape, files: &[ProductFile<'_>]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(&str, &ProductFile<'_>)>> = BTreeMap::new();
    for file in files {
        if let Some((name, below)) =
            file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        {
            crates.entry(name).or_default().push((below, file));
        }
    }
    crates.into_iter().flat_map(|(name, files)| check_crate(shape, name, &files)).collect()
}

fn check_crate(shape: &Shape, name: &str, files: &[(&str, &ProductFile<'_>)]) -> Vec<Finding> {
    let folders: BTreeSet<&str> =
        files.iter().flat_map(|(below, _)| below.match_indices('/').map(|(at, _)| &below[..at])).collect();
    let mut allowed: Vec<(&[String; 2], bool)> = shape
        .mutual_modules
        .iter()
        .filter(|pair| pair.crate_name == name)
        .map(|pair| (&pair.modules, false))
        .collect();
    let mut findings = Vec::new();
    for folder in std::iter::once("").chain(folders) {
        for (pair, [(file, line), (back, back_line)]) in mutual_uses(folder, files) {
            if let Some((_, used)) = allowed.iter_mut().find(|(allowed, _)| **allowed == pair) {
                *used = true;
                continue;
            }
            let [from, to] = pair;
            let message = format!(
                "modules `{from}` and `{to}` of {name} use each other (`{to}` uses `{from}` at {back}:{back_line}): move what both need into a third module"
            );
            findings.push(Finding { file, line, message });
        }
    }
    let exists = |module: &String| {
        let path = module.replace("::", "/");
        files.iter().any(|(below, _)| {
            below.strip_prefix(&path).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    for (pair, _) in allowed.iter().filter(|(pair, used)| !used && pair.iter().all(exists)) {
        let message = format!(
            "mutual_modules allows {pair:?} of {name}, which do not use each other: remove the entry"
        );
        findings.push(Finding { file: "xtask/words.toml".to_owned(), line: 1, message });
    }
    findings
}

/// Pairs of modules in a folder that use each other.
fn mutual_uses(folder: &str, files: &[(&str, &ProductFile<'_>)]) -> Vec<MutualUse> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let inside: Vec<(&str, &ProductFile<'_>)> =
        files.iter().filter_map(|(below, file)| Some((below.strip_prefix(&prefix)?, *file))).collect();
    let parents = if folder.is_empty() {
        ["lib.rs".to_owned(), "main.rs".to_owned()]
    } else {
        [format!("{folder}/mod.rs"), format!("{folder}.rs")]
    };
    let parent =
        files.iter().find(|(below, _)| parents.iter().any(|parent| parent == below)).map(|(_, file)| *file);
    let uses = uses(&prefix, parent, &inside);
    let path = |module: &str| format!("{prefix}{module}").replace('/', "::");
    let mut found = Vec::new();
    for ((from, to), place) in &uses {
        if let Some(back) = uses.get(&(to.clone(), from.clone())).filter(|_| from < to) {
            found.push(([path(from), path(to)], [place.clone(), back.clone()]));
        }
    }
    found
}

/// Uses between the modules of one folder. `prefix` is the folder with a slash, or empty for the root of the crate.
fn uses(prefix: &str, parent: Option<&ProductFile<'_>>, files: &[(&str, &ProductFile<'_>)]) -> Uses {
    let modules: BTreeSet<&str> = files.iter().filter_map(|(below, _)| top_module(below)).collect();
    let exports = parent.map(|parent| reexports(&modules, parent)).unwrap_or_default();
    let from_crate = format!("crate::{}", prefix.replace('/', "::"));
    let mut uses = Uses::new();
    for (below, file) in files {
        let Some(module) = top_module(below) else { continue };
        let to_root = format!("{}::", vec!["super"; depth(below)].join("::"));
        for (line, path) in root_paths(&joined(file), [&from_crate, &to_root]) {
            let used = modules.get(path.as_str()).copied().or_else(|| exports.get(&path).map(String::as_str));
            if let Some(used) = used.filter(|used| *used != module) {
                let place = (file.path.to_owned(), line);
                uses.entry((module.to_owned(), used.to_owned())).or_insert(place);
            }
        }
    }
    uses
}

/// Module of a file below a folder; `None` for the module of the folder itself, the crate root and programs.
fn top_module(below: &str) -> Option<&str> {
    let first = below.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main" | "bin" | "mod")).then_some(name)
}

/// Number of `super::` from this file to the folder's module.
fn depth(below: &str) -> usize {
    let folders = below.matches('/').count();
    if below.ends_with("/mod.rs") { folders } else { folders + 1 }
}

/// Code of the file as one text.
fn joined(file: &ProductFile<'_>) -> String {
    let lines: Vec<&str> = file.code.iter().map(|line| line.unwrap_or("")).collect();
    lines.join("\n")
}

/// Names directly below the prefixes that are used, with their line numbers.
fn root_paths(code: &str, prefixes: [&str; 2]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for prefix in prefixes {
        for (at, _) in code.match_indices(prefix) {
            let before = &code[..at];
            if before.ends_with(|c: char| is_word(c) || c == '$' || c == ':') {
                continue;
            }
            let line = before.matches('\n').count() + 1;
            found.extend(first_names(&code[at + prefix.len()..]).into_iter().map(|name| (line, name)));
        }
    }
    found.retain(|(_, name)| name != "super");
    found
}

/// `a` of `a::b`, or `a` and `c` of `{a::b, c}`.
fn first_names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else {
        return rest.split(|c| !is_word(c)).take(1).map(str::to_owned).collect();
    };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut item = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(std::mem::take(&mut item)),
            c if depth == 0 => item.push(c),
            _ => {}
        }
    }
    names.push(item);
    names
        .iter()
        .map(|item| item.trim().split(|c| !is_word(c)).next().unwrap_or_default().to_owned())
        .collect()
}

/// Names that the crate root re-exports from its modules.
fn reexports(modules: &BTreeSet<&str>, root: &ProductFile<'_>) -> BTreeMap<String, String> {
    let code = joined(root);
    let mut exports = BTreeMap::new();
    for (at, _) in code.match_indices("use ") {
        let Some((path, _)) = code[at + 4..].split_once(';') else { continue };
        let path = path.trim().trim_start_matches("crate::").trim_start_matches("self::");
        let Some((module, names)) = path.split_once("::") else { continue };
        if modules.contains(module) {
            for name in names.split(['{', '}', ',']).map(str::trim).filter(|name| !name.is_empty()) {
                let name = name.rsplit(" as ").next().unwrap_or(name);
                let name = name.rsplit("::").next().unwrap_or(name);
                exports.insert(name.to_owned(), module.to_owned());
            }
        }
    }
    exports
}
