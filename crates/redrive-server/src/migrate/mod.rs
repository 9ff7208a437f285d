//! `redrive migrate`: moves everything from a file to a PostgreSQL server.

mod progress;

use std::io::Write;

use clap::Args;
use redrive::postgres::{TablePlan, TableProof, Transfer};
use redrive::{PostgresOptions, StoreError};
use serde::Serialize;

use self::progress::Progress;
use crate::database::{Database, block_on, must_exist};
use crate::failure::Failure;
use crate::label;
use crate::screen::{Screen, Style};
use crate::table::{Align, Table};

const EXAMPLES: &str = "\
Examples:
  redrive migrate --from redrive.db --to postgres://anna@host/shop --dry-run
  REDRIVE_DB=postgres://anna:password@host/shop?schema=billing redrive migrate --from redrive.db

Copies events of every state, deliveries, attempts, dead letters with their history, subscriptions, idempotency keys and \
the audit log. Ids and times stay what they are. At the end everything is read again on both sides and compared, row by \
row; only then can it be handled on the server. If it is cut off, run it again: it goes on where it ended.

Stop the program that uses the file first. The file is not changed; keep it until you are sure, and let no program handle \
events from it again, or they are handled twice.";

/// Move everything from a file to a PostgreSQL server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Migrate {
    /// The file
    #[arg(long, value_name = "PATH")]
    from: Database,
    /// The server, postgres://user@host/database; ?schema=name if it is not to be redrive, &sslrootcert=FILE for a CA of your
    /// own, &poll_only=true behind a transaction pooler
    // The value of the variable may hold a password, and is not shown.
    #[arg(long, value_name = "URL", env = "REDRIVE_DB", hide_env_values = true)]
    to: Database,
    /// Only say what would be copied
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
}

#[derive(Debug, Serialize)]
struct Line {
    table: &'static str,
    rows: u64,
    /// On the server before this run.
    there: u64,
    /// The same on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

impl Migrate {
    pub(crate) fn run(self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let from = self.from.file("--from is the file that everything is in; give its path")?;
        let Some(to) = self.to.address() else {
            let why = "--to is the server that everything goes to: give postgres://user@host/database";
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
            let proofs = ended.map_err(cut_off)?;
            Ok(plan.into_iter().zip(proofs).map(Line::proven).collect())
        })?;
        if self.json {
            let (from, to) = (self.from.to_string(), self.to.to_string());
            let report = Report { from, to, dry_run: self.dry_run, tables: &lines };
            serde_json::to_writer(&mut *out, &report)?;
            return Ok(writeln!(out)?);
        }
        self.print(&lines, out, screen)
    }

    fn print(&self, lines: &[Line], out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let last = if self.dry_run { "" } else { "checksum, the same on both sides" };
        let mut table = Table::new([
            ("table", Align::Left),
            ("rows", Align::Right),
            ("there before", Align::Right),
            (last, Align::Left),
        ]);
        for line in lines {
            // Enough to compare by eye; all of it is in --json.
            let checksum = line.checksum.as_deref().map_or("", |checksum| &checksum[..16]);
            table.row([
                line.table.to_owned(),
                label::count(line.rows),
                label::count(line.there),
                checksum.to_owned(),
            ]);
        }
        table.print(out, screen)?;
        let (from, to) = (&self.from, &self.to);
        if self.dry_run {
            let text = format!("Nothing was changed. Without --dry-run these rows are copied to {to}.");
            return Ok(writeln!(out, "\n{}", screen.wrap(&text))?);
        }
        let done = format!("Everything in {from} is in {to}, and can be handled there.");
        writeln!(out, "\n{}", screen.paint(Style::Good, screen.wrap(&done)))?;
        let advice = format!(
            "{from} was not changed. Keep it until you are sure, and let no program handle events from it again, or \
             they are handled twice."
        );
        Ok(writeln!(out, "{}", screen.wrap(&advice))?)
    }
}

impl From<TablePlan> for Line {
    fn from(TablePlan { table, rows, there }: TablePlan) -> Self {
        Line { table, rows, there, checksum: None }
    }
}

impl Line {
    fn proven((plan, proof): (TablePlan, TableProof)) -> Self {
        Line { rows: proof.rows, checksum: Some(proof.checksum), ..Line::from(plan) }
    }
}

/// What went wrong on the way, and that nothing has to begin anew.
fn cut_off(error: StoreError) -> Failure {
    match error {
        StoreError::OccupiedSchema { .. } | StoreError::Damaged { .. } | StoreError::Forbidden { .. } => {
            error.into()
        }
        error => Failure::Failed(format!(
            "{error}; what is copied stays: run the same command again, and it goes on where it ended"
        )),
    }
}
