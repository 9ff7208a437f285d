//! `redrive dlq export`: dead events as JSON lines, whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use redrive::{DlqFilter, Store};
use serde::Serialize;

use super::filter_args::FilterArgs;
use super::pages::Pages;
use crate::database::{Database, block_on};
use crate::failure::Failure;
use crate::label;

/// How many are read at a time.
const PAGE: u32 = 500;

/// Write dead events as JSON lines, with every attempt
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq export dead.jsonl
  redrive dlq export --type order.created | jq -r .payload.order")]
pub(crate) struct Export {
    /// A new file; - or nothing is standard output
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print one JSON object about what was written to the file
    #[arg(long, requires = "file")]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a Path,
    exported: u64,
}

impl Export {
    pub(crate) fn run(&self, db: &Database, out: &mut impl Write) -> Result<(), Failure> {
        let filter = self.filter.filter();
        let Some(path) = self.file.as_deref().filter(|path| *path != Path::new("-")) else {
            if self.json {
                return Err(Failure::Usage(
                    "--json is about a file; the lines themselves are JSON".to_owned(),
                ));
            }
            return block_on(async { export(&*db.open().await?, filter, out).await.map(|_| ()) });
        };
        let failed = |error: io::Error| {
            let what = if error.kind() == io::ErrorKind::AlreadyExists {
                "choose a new name"
            } else {
                "check the path"
            };
            Failure::Failed(format!("{} cannot be written: {error}; {what}", path.display()))
        };
        let exported = block_on(async {
            let store = db.open().await?;
            let mut file = BufWriter::new(File::create_new(path).map_err(failed)?);
            let exported = export(&*store, filter, &mut file).await.map_err(|failure| match failure {
                Failure::Output(error) => failed(error),
                other => other,
            })?;
            file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
            Ok(exported)
        })?;
        if self.json {
            serde_json::to_writer(&mut *out, &Report { file: path, exported })?;
            return Ok(writeln!(out)?);
        }
        Ok(writeln!(out, "{} written to {}", label::counted(exported, "dead event"), path.display())?)
    }
}

/// Each with its attempts, which pages do not have.
async fn export(store: &dyn Store, filter: DlqFilter, out: &mut impl Write) -> Result<u64, Failure> {
    let mut pages = Pages::new(store, filter, PAGE, None);
    let mut exported = 0;
    while let Some(page) = pages.next().await? {
        for mut dead in page {
            dead.attempts = match store.event(dead.id).await {
                Ok(event) => event.attempts,
                // Sent back or deleted meanwhile: what the page says is still what was dead.
                Err(redrive::StoreError::NoSuchEvent { .. }) => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            if let Some(by) = &dead.subscription {
                dead.attempts.retain(|attempt| attempt.subscription == by.as_str());
            }
            serde_json::to_writer(&mut *out, &dead)?;
            writeln!(out)?;
            exported += 1;
        }
    }
    Ok(exported)
}
