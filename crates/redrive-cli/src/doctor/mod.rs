//! `redrive doctor`: checks a database and its machine, and prints a remedy for each problem.

mod file;
mod file_work;
mod finding;
mod machine;
mod server;
mod work;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use self::finding::{Finding, Verdict};
use crate::api::write_json;
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};

/// Check the database, its pending work and the disk
#[derive(Debug, Args)]
#[command(after_help = "\
Only reads the database, also while a bus is running; writes a temporary file into its folder to measure the disk. Exit code \
1 if a check fails.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    database: String,
    ok: bool,
    checks: Vec<Finding>,
}

impl Doctor {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let db = &self.database.db;
        let mut checks = Vec::new();
        match (db.path(), db.address()) {
            (Some(path), _) => {
                if let Some(connection) = file::check(path, &mut checks) {
                    file_work::check(path, &db.flag(), &connection, &mut checks);
                }
                machine::check(path, &mut checks);
            }
            (None, Some(address)) => server::check(address, &db.flag(), &mut checks),
            (None, None) => {}
        }
        let ok = checks.iter().all(|finding| finding.verdict != Verdict::Fail);
        let report = Report { database: db.to_string(), ok, checks };
        if self.json {
            write_json(out, &report)?;
        } else {
            report.print(out, screen)?;
        }
        report.verdict()
    }
}

impl Report {
    fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        writeln!(out, "{}", screen.paint(Style::Strong, &self.database))?;
        let narrower = Screen { width: screen.width.saturating_sub(INDENT), ..screen };
        for Finding { check, verdict, found, advice } in &self.checks {
            let sign = match verdict {
                Verdict::Ok => screen.paint(Style::Good, "ok  "),
                Verdict::Warn => screen.paint(Style::Load, "warn"),
                Verdict::Fail => screen.paint(Style::Bad, "FAIL"),
            };
            let indented = |text: &str| narrower.wrap(text).replace('\n', &format!("\n{:INDENT$}", ""));
            writeln!(out, "{sign}  {check:<14}{}", indented(&format::one_line(found)))?;
            if let Some(advice) = advice {
                writeln!(out, "{:INDENT$}{}", "", indented(&format!("→ {advice}")))?;
            }
        }
        Ok(())
    }

    fn verdict(&self) -> Result<(), Failure> {
        let failed: Vec<&str> = self
            .checks
            .iter()
            .filter(|finding| finding.verdict == Verdict::Fail)
            .map(|finding| finding.check)
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(format!("failed checks: {}; see the advice above", failed.join(", "))))
    }
}

/// Column of the findings.
const INDENT: usize = 20;
