//! Measures the line coverage of a crate's tests.
//!
//! Only workspace crates are instrumented, so dependencies are not compiled again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Version suffixes of the LLVM tools, newest first. The tools of the toolchain always fit; of the others, 19 and later can read
/// its profiles.
const TOOLS: [&str; 5] = ["", "-22", "-21", "-20", "-19"];

/// Runs the tests of a crate and prints the line coverage of each file. Fails below `least` percent.
pub(crate) fn run(root: &Path, package: &str, least: f64) -> ExitCode {
    match measure(root, package) {
        Ok((table, percent)) => {
            println!("{table}");
            println!("{package}: {percent:.1} % of its lines");
            if percent >= least {
                return ExitCode::SUCCESS;
            }
            eprintln!("that is less than {least} %");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(root: &Path, package: &str) -> Result<(String, f64), String> {
    let profdata = find("llvm-profdata")?;
    let cov = find("llvm-cov")?;
    let counts = root.join("target/coverage").join(package);
    let _ = fs::remove_dir_all(&counts); // of the last run, if any
    fs::create_dir_all(&counts).map_err(|error| format!("{}: {error}", counts.display()))?;
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .current_dir(root)
            .env("RUSTC_WORKSPACE_WRAPPER", root.join("xtask/with-coverage"))
            .env("LLVM_PROFILE_FILE", counts.join("%p-%m.profraw"))
            .args(["test", "--locked", "--package", package, "--all-features", "--all-targets"]);
        command
    };
    let built = said(cargo().args(["--no-run", "--message-format=json"]).stderr(Stdio::inherit()))?;
    let programs: Vec<&str> = built.lines().filter_map(executable).collect();
    if !cargo().status().map_err(|error| error.to_string())?.success() {
        return Err("the tests fail: there is nothing to measure".to_owned());
    }
    let merged = counts.join("merged");
    let raw = fs::read_dir(&counts).map_err(|error| error.to_string())?.flatten().map(|entry| entry.path());
    let raw: Vec<PathBuf> =
        raw.filter(|path| path.extension().is_some_and(|kind| kind == "profraw")).collect();
    said(Command::new(profdata).args(["merge", "--sparse", "--output"]).arg(&merged).args(raw))?;
    let mut report = Command::new(cov);
    report.arg("report").arg(format!("--instr-profile={}", merged.display()));
    for (place, program) in programs.iter().enumerate() {
        if place > 0 {
            report.arg("--object");
        }
        report.arg(program);
    }
    report.arg(root.join("crates").join(package).join("src"));
    let table = said(&mut report)?;
    let percent = table.lines().rfind(|line| line.starts_with("TOTAL")).and_then(lines_reached);
    let percent = percent.ok_or_else(|| format!("nothing was counted:\n{table}"))?;
    Ok((shortened(&table), percent))
}

/// Standard output of a command.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn find(tool: &str) -> Result<PathBuf, String> {
    let sysroot = said(Command::new("rustc").args(["--print", "target-libdir"])).unwrap_or_default();
    let own = Path::new(sysroot.trim()).with_file_name("bin").join(tool);
    let others = TOOLS.iter().map(|version| PathBuf::from(format!("{tool}{version}")));
    let works = |path: &PathBuf| {
        let version = said(Command::new(path).arg("--version")).unwrap_or_default();
        let number = version.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
        number.is_some_and(|number: u32| number >= 19)
    };
    [own].into_iter().chain(others).find(works).ok_or_else(|| {
        format!("{tool} is not here: `rustup component add llvm-tools`, or install the package llvm-19")
    })
}

/// Path of a program that cargo has built: one field of one line of JSON.
fn executable(line: &str) -> Option<&str> {
    line.split_once(r#""executable":""#)?.1.split('"').next()
}

/// Line coverage of the total. The columns are count, missed and share of regions, functions, lines and branches.
fn lines_reached(total: &str) -> Option<f64> {
    total.split_whitespace().nth(9)?.strip_suffix('%')?.parse().ok()
}

/// Shortens the table to files, lines and coverage.
fn shortened(table: &str) -> String {
    let columns = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        (columns.len() > 9).then(|| format!("{:<60}{:>8}{:>10}", columns[0], columns[7], columns[9]))
    };
    let files = table.lines().filter(|line| line.contains(".rs ")).filter_map(columns);
    files.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_tools_is_parsed() {
        let total = "TOTAL   5000   300  94.00%   700   10   98.57%   4000   200   95.00%   0   0   -";
        assert_eq!(lines_reached(total), Some(95.0));
        let built = r#"{"reason":"compiler-artifact","executable":"/x/deps/a-1","fresh":true}"#;
        assert_eq!(executable(built), Some("/x/deps/a-1"));
        assert_eq!(executable(r#"{"executable":null}"#), None);
        let table = "src/a.rs   9   1   88.89%   2   0   100.00%   2   0   100.00%   0   0   -\n-----\n";
        assert!(shortened(table).starts_with("src/a.rs ") && shortened(table).ends_with("100.00%"));
    }
}
