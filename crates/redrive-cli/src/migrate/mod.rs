//! `redrive migrate`: copies a SQLite database to PostgreSQL and compares both.

mod progress;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use redrive::store::postgres::{TablePlan, TableProof, Transfer};
use redrive::store::{PostgresOptions, StoreError};
use redrive_server::serve::secret_key::SecretKeyArgs;
use serde::Serialize;

use self::progress::Progress;
use crate::api::write_json;
use crate::database::{Database, block_on, must_exist};
use crate::failure::Failure;
use crate::format;
use crate::screen::{Screen, Style};
use crate::table::Table;

const EXAMPLES: &str = "\
Examples:
  redrive migrate --from redrive.db --to postgres://anna@host/shop --dry-run
  REDRIVE_DB=postgres://anna:password@host/shop?schema=billing redrive migrate --from redrive.db

Copies events of every status, deliveries, attempts, dead letters with their history, subscriptions, idempotency keys and \
the audit log, with unchanged ids and times. At the end it reads both sides again and compares them row by row; only then can \
the server dispatch the events. After an interruption, run it again: it continues where it stopped.

First stop the program that uses the file. The file is not changed; keep it until you are sure. Do not dispatch from it \
again, or its events are handled twice.";

/// Copy a SQLite database to PostgreSQL
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Migrate {
    /// SQLite file to copy
    #[arg(long, value_name = "PATH")]
    from: Database,
    /// PostgreSQL server, postgres://user@host/database; ?schema=name for a schema other than redrive, &sslrootcert=FILE for your
    /// own CA, &poll_only=true behind a transaction pooler
    // The variable may hold a password: its value is hidden.
    #[arg(long, value_name = "URL", env = "REDRIVE_DB", hide_env_values = true)]
    to: Database,
    #[command(flatten)]
    secret_key: SecretKeyArgs,
    /// Print the counts and copy nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    from: String,
    to: String,
    dry_run: bool,
    tables: &'a [Line],
    /// Key file that opens the copied endpoint secrets, if there is one.
    key: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Line {
    table: &'static str,
    rows: u64,
    /// Rows on the server before this run.
    there: u64,
    /// Equal on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

impl Migrate {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let from = self.from.file("--from is the SQLite file to copy; give its path")?;
        let Some(to) = self.to.address() else {
            let why = "--to is the PostgreSQL server: give postgres://user@host/database";
            return Err(Failure::Usage(why.to_owned()));
        };
        must_exist(from, "--from PATH")?;
        let lines = block_on(async {
            let transfer = Transfer::open(from, to, PostgresOptions::default()).await?;
            let plan = transfer.plan().await?;
            if self.dry_run {
                return Ok(plan.into_iter().map(Line::from).collect::<Vec<_>>());
            }
            let mut progress = Progress::new(plan.iter().map(|table| table.rows).sum(), self.json);
            let ended = transfer.run(&mut |step| progress.step(step)).await;
            progress.finish();
            let proofs = ended.map_err(interrupted)?;
            let verified = |(plan, proof): (TablePlan, TableProof)| Line {
                rows: proof.rows,
                checksum: Some(proof.checksum),
                ..Line::from(plan)
            };
            Ok(plan.into_iter().zip(proofs).map(verified).collect())
        })?;
        if self.json {
            let (from, to) = (self.from.to_string(), self.to.to_string());
            let report = Report { from, to, dry_run: self.dry_run, tables: &lines, key: self.key() };
            return write_json(out, &report);
        }
        self.print(&lines, out, screen)
    }

    fn print(&self, lines: &[Line], out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let last = if self.dry_run { "" } else { "checksum, equal on both sides" };
        let row = |line: &Line| {
            // The beginning is enough for a person; a pipe gets all of it.
            let checksum = line.checksum.as_deref().unwrap_or_default();
            let checksum = if screen.cuts { checksum.get(..16).unwrap_or(checksum) } else { checksum };
            [line.table.to_owned(), format::count(line.rows), format::count(line.there), checksum.to_owned()]
        };
        let table = Table::new(["table", "rows", "there before", last], lines.iter().map(row));
        table.right(&[1, 2]).print(out, screen)?;
        let (from, to) = (&self.from, &self.to);
        if self.dry_run {
            let text = format!("Nothing was changed. Without --dry-run, these rows are copied to {to}.");
            return Ok(writeln!(out, "\n{}", screen.wrap(&text))?);
        }
        let done = format!("Everything in {from} was copied to {to} and can be dispatched there.");
        writeln!(out, "\n{}", screen.paint(Style::Good, screen.wrap(&done)))?;
        let advice = format!(
            "{from} was not changed. Keep it until you are sure. Do not dispatch from it again, or its events are handled \
             twice."
        );
        writeln!(out, "{}", screen.wrap(&advice))?;
        if let Some(key) = self.key() {
            let advice = format!(
                "Endpoint secrets stay sealed with the key {}, which is not in the database: give it to every server, with \
                 --secret-key-file or REDRIVE_SECRET_KEY_FILE.",
                key.display()
            );
            writeln!(out, "{}", screen.wrap(&advice))?;
        }
        Ok(())
    }

    /// The key file of the copied database.
    fn key(&self) -> Option<PathBuf> {
        self.secret_key.file(&self.from).filter(|path| path.exists())
    }
}

impl From<TablePlan> for Line {
    fn from(TablePlan { table, rows, copied }: TablePlan) -> Self {
        Line { table, rows, there: copied, checksum: None }
    }
}

/// Error during the copy, with the advice to continue where that helps.
fn interrupted(error: StoreError) -> Failure {
    match error {
        StoreError::OccupiedSchema { .. } | StoreError::Damaged { .. } | StoreError::Forbidden { .. } => {
            error.into()
        }
        error => {
            Failure::Failed(format!("{error}; run the same command again to continue: the copied rows stay"))
        }
    }
}
