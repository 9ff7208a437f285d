//! `redrive dlq export`: dead events as JSON lines, whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use redrive::DlqFilter;
use serde::Serialize;

use super::filter_args::FilterArgs;
use crate::failure::Failure;
use crate::label;
use crate::ledger::Ledger;

/// How many are read at a time. Not many: they have their payloads.
const PAGE: u32 = 50;

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
    pub(crate) async fn run(&self, ledger: &Ledger, out: &mut impl Write) -> Result<(), Failure> {
        let filter = self.filter.filter();
        let Some(path) = self.file.as_deref().filter(|path| *path != Path::new("-")) else {
            if self.json {
                return Err(Failure::Usage(
                    "--json is about a file; the lines themselves are JSON".to_owned(),
                ));
            }
            return export(ledger, &filter, out).await.map(drop);
        };
        let failed = |error: io::Error| {
            let what = if error.kind() == io::ErrorKind::AlreadyExists {
                "choose a new name"
            } else {
                "check the path"
            };
            Failure::Failed(format!("{} cannot be written: {error}; {what}", path.display()))
        };
        let mut file = BufWriter::new(File::create_new(path).map_err(failed)?);
        let exported = export(ledger, &filter, &mut file).await.map_err(|failure| match failure {
            Failure::Output(error) => failed(error),
            other => other,
        })?;
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
        if self.json {
            serde_json::to_writer(&mut *out, &Report { file: path, exported })?;
            return Ok(writeln!(out)?);
        }
        Ok(writeln!(out, "{} written to {}", label::counted(exported, "dead event"), path.display())?)
    }
}

/// Each with its attempts, which pages do not have.
async fn export(ledger: &Ledger, filter: &DlqFilter, out: &mut impl Write) -> Result<u64, Failure> {
    let (mut exported, mut after) = (0, None);
    loop {
        let part = ledger.dead_letters(filter, PAGE, after).await?;
        for dead in part.items {
            serde_json::to_writer(&mut *out, &ledger.with_attempts(dead).await?)?;
            writeln!(out)?;
            exported += 1;
        }
        after = part.next;
        if after.is_none() {
            return Ok(exported);
        }
    }
}
