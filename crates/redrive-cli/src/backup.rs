//! `redrive backup`: writes a consistent copy of the database while it is in use.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use redrive_server::serve::secret_key::SecretKeyArgs;
use serde::Serialize;

use crate::api::write_json;
use crate::database::{DatabaseArgs, NAMED_BY, block_on, must_exist, open_file};
use crate::failure::Failure;
use crate::format;

/// Copy the database to a new file while it is in use
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive backup redrive-$(date +%F).db
  redrive backup /mnt/backup/redrive.db --with-key

The secrets of endpoints are sealed with the key file, which is not in the database: without it, a restored backup cannot send webhooks. \
--with-key copies it beside the backup, where `redrive serve --db FILE` finds it. Both together disclose the secrets.")]
pub(crate) struct Backup {
    /// New file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Copy the key file too, to FILE.key
    #[arg(long)]
    with_key: bool,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    secret_key: SecretKeyArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    bytes: u64,
    /// Key file that the backup needs, if there is one.
    key: Option<PathBuf>,
    /// Copy of the key file beside the backup.
    key_copy: Option<PathBuf>,
}

impl Backup {
    pub(crate) fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        let database = self.database.db.file("copy it with pg_dump --schema, which is also consistent")?;
        must_exist(database, NAMED_BY)?;
        block_on(async { Ok(open_file(database)?.backup(&self.file).await?) })?;
        let bytes = std::fs::metadata(&self.file).map_or(0, |file| file.len());
        let db = &self.database.db;
        let key = self.secret_key.file(db).filter(|path| path.exists());
        let copy = || self.secret_key.copy_beside(db, &self.file);
        let key_copy = self.with_key.then(copy).transpose().map_err(|failure| {
            Failure::Failed(format!("{} is complete, but {}", self.file.display(), failure.into_message()))
        })?;
        if self.json {
            return write_json(out, &Report { file: self.file, bytes, key, key_copy });
        }
        writeln!(out, "{} written to {}", format::bytes(bytes), self.file.display())?;
        match (key, key_copy) {
            (_, Some(copy)) => writeln!(out, "the key for endpoint secrets written to {}", copy.display())?,
            (Some(key), None) => writeln!(
                out,
                "Endpoint secrets are sealed with the key {}: keep a copy of it too, or use --with-key.",
                key.display()
            )?,
            (None, None) => {}
        }
        Ok(())
    }
}
