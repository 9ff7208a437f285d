//! `redrive doctor`: checks a database or a server and the work on it, and prints a remedy for each problem.

mod file;
mod file_owner;
mod finding;
mod in_flight;
mod key;
mod machine;
mod remote;
mod server;
mod work;

use std::io::{self, Write};

use clap::Args;
use redrive_server::serve::secret_key::SecretKeyArgs;
use redrive_server::serve::sending::SendingArgs;
use serde::Serialize;

use self::finding::{Finding, Verdict};
use crate::api::{EndpointSecrets, IfMissing, ServerArgs, write_json};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::screen::{Screen, Style};
use crate::{format, time_format};

/// Check a database or a server, the work that waits and the disk
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive doctor
  redrive doctor --server https://events.example.com --token rdt_…

On a database: only reads it, also while a bus is running; writes a temporary file into its folder to measure the disk. With --server, \
asks the server; the token needs the scope read.

Exit code 1 if something does not work (FAIL) or needs a person (ACT): dead letters, messages in review, failing endpoints, overdue \
work, orphaned deliveries.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    secret_key: SecretKeyArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    database: String,
    ok: bool,
    checks: Vec<Finding>,
}

impl Doctor {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let mut checks = Vec::new();
        let name = match self.server.url() {
            Some(url) => {
                self.remote(&mut checks, out, screen);
                url.to_string()
            }
            None => {
                self.local(&mut checks, out, screen);
                self.database.db.to_string()
            }
        };
        let ok = checks.iter().all(|finding| matches!(finding.verdict, Verdict::Ok | Verdict::Warn));
        let report = Report { database: name, ok, checks };
        if self.server.json() {
            write_json(out, &report)?;
        } else {
            report.print(out, screen)?;
        }
        report.verdict()
    }

    /// Checks through the HTTP API of a server.
    fn remote(&self, checks: &mut Vec<Finding>, out: &mut impl Write, screen: Screen) {
        let db = &self.database.db;
        let done = self.server.run(db, EndpointSecrets::Closed, IfMissing::Fail, out, screen, async |api| {
            if remote::ready(api, checks).await {
                let before = time_format::now();
                let found = work::diagnostics(api, &["clocks", "key"], checks).await;
                checks.extend(found.iter().flat_map(|found| {
                    let clock = remote::clock(found.now.0, before, time_format::now());
                    [clock, key::of_server(found.unreadable_endpoints)]
                }));
                work::check(api, found.as_ref(), true, checks).await;
            }
            Ok(())
        });
        checks.extend(done.err().map(unopened));
    }

    /// Checks a database directly, then the work on it through the HTTP API in process.
    fn local(&self, checks: &mut Vec<Finding>, out: &mut impl Write, screen: Screen) {
        let db = &self.database.db;
        let is_dispatched = match (db.path(), db.address()) {
            (Some(path), _) => {
                let connection = file::check(path, checks);
                connection.map(|connection| file_owner::check(path, &connection, checks))
            }
            (None, Some(address)) => server::check(address, checks),
            (None, None) => None,
        };
        if let Some(is_dispatched) = is_dispatched {
            self.work(is_dispatched, checks, out, screen);
        }
        if let Some(path) = db.path() {
            machine::check(path, checks);
        }
    }

    /// Checks the work on a database of this release, and the key of its endpoints.
    fn work(&self, is_dispatched: bool, checks: &mut Vec<Finding>, out: &mut impl Write, screen: Screen) {
        let (db, sending) = (&self.database.db, SendingArgs::default());
        // Without a usable key, everything but the endpoints is checked. A missing key would be created.
        let unusable = self.secret_key.check(db).err();
        let secrets = if unusable.is_some() || self.secret_key.missing(db).is_some() {
            EndpointSecrets::Closed
        } else {
            EndpointSecrets::Open(&self.secret_key, &sending)
        };
        let done = self.server.run(db, secrets, IfMissing::Fail, out, screen, async |api| {
            let found = work::diagnostics(api, &["key"], checks).await;
            work::check(api, found.as_ref(), is_dispatched, checks).await;
            checks.extend(found.map(|found| match unusable {
                Some(failure) => key::unusable(failure),
                None => {
                    let file = self.secret_key.file(db);
                    key::check(file.as_deref(), found.unreadable_endpoints, db.path().is_some())
                }
            }));
            Ok(())
        });
        checks.extend(done.err().map(unopened));
    }
}

/// The finding of a database or server that cannot be used.
fn unopened(failure: Failure) -> Finding {
    let advice = "if the database is locked, repeat the command; the message says what else to do";
    Finding::fail("work", failure.into_message(), advice)
}

impl Report {
    fn print(&self, out: &mut impl Write, screen: Screen) -> io::Result<()> {
        writeln!(out, "{}", screen.paint(Style::Strong, &self.database))?;
        let narrower = Screen { width: screen.width.saturating_sub(INDENT), ..screen };
        for Finding { check, verdict, found, advice } in &self.checks {
            let sign = match verdict {
                Verdict::Ok => screen.paint(Style::Good, "ok  "),
                Verdict::Warn => screen.paint(Style::Load, "warn"),
                Verdict::Act => screen.paint(Style::Bad, "ACT "),
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
        let names = |verdict: Verdict| -> Vec<&str> {
            self.checks
                .iter()
                .filter(|finding| finding.verdict == verdict)
                .map(|finding| finding.check)
                .collect()
        };
        let part = |what: &str, names: Vec<&str>| {
            (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
        };
        let parts = [
            part("failed checks", names(Verdict::Fail)),
            part("checks that need a person", names(Verdict::Act)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(format!("{}; see the advice above", parts.join("; "))))
    }
}

/// Column of the findings.
const INDENT: usize = 20;
