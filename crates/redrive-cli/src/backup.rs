//! `redrive backup`: writes a consistent copy of the database while it is in use.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::api::write_json;
use crate::database::{DatabaseArgs, NAMED_BY, block_on, must_exist, open_file};
use crate::failure::Failure;
use crate::format;

/// Copy the database to a new file while it is in use
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  redrive backup redrive-$(date +%F).db")]
pub(crate) struct Backup {
    /// New file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    bytes: u64,
}

impl Backup {
    pub(crate) fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let database = self.database.db.file("copy it with pg_dump --schema, which is also consistent")?;
        must_exist(database, NAMED_BY)?;
        block_on(async { Ok(open_file(database)?.backup(&self.file).await?) })?;
        let bytes = std::fs::metadata(&self.file).map_or(0, |file| file.len());
        if self.json {
            return write_json(out, &Report { file: self.file, bytes });
        }
        Ok(writeln!(out, "{} written to {}", format::bytes(bytes), self.file.display())?)
    }
}
