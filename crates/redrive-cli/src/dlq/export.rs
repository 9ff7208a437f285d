//! `redrive dlq export`: writes dead letters as JSON lines, each as `GET /v1/dlq/{id}` has it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use futures_util::future::join_all;
use redrive_api::client::Client;
use redrive_api::dlq::DlqFilter;
use redrive_api::page::PageQuery;
use serde::Serialize;

use super::filter_args::FilterArgs;
use crate::api::{Session, write_json};
use crate::failure::Failure;
use crate::format;

/// Dead letters of one read. A payload may have 1 MiB.
const PAGE: u32 = 16;

/// Write dead letters as JSON lines, with every attempt
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive dlq export dead.jsonl
  redrive dlq export --type order.created | jq -r .payload.order

With --json and a file, prints one JSON object with the file and the number of dead letters.")]
pub(crate) struct Export {
    /// New file to write; standard output if it is - or absent
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a Path,
    exported: u64,
}

impl Export {
    pub(crate) async fn run(&self, api: &mut Session<'_>) -> Result<(), Failure> {
        let filter = self.filter.filter();
        let Some(path) = self.file.as_deref().filter(|path| *path != Path::new("-")) else {
            if api.json {
                return Err(Failure::Usage(
                    "--json is about a file; the lines themselves are JSON".to_owned(),
                ));
            }
            return export(&Client::clone(api), &filter, api.out).await.map(drop);
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
        let exported = export(api, &filter, &mut file).await.map_err(|failure| match failure {
            Failure::Output(error) => failed(error),
            other => other,
        })?;
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
        api.print_response(Report { file: path, exported }, |api, _| {
            let letters = format::counted(exported, "dead event");
            Ok(writeln!(api.out, "{letters} written to {}", path.display())?)
        })
    }
}

/// Writes the dead letters page by page, each with its attempts.
async fn export(api: &Client, filter: &DlqFilter, out: &mut (impl Write + ?Sized)) -> Result<u64, Failure> {
    let (mut exported, mut after) = (0, None);
    loop {
        let page = api.dlq().list(filter, &PageQuery { limit: Some(PAGE), after }).await?;
        let whole = join_all(page.data.iter().map(|dead| async { api.dlq().get(dead.id).await })).await;
        for (listed, whole) in page.data.iter().zip(whole) {
            let entries = match whole {
                Ok(entries) => entries.data,
                // Redriven or deleted since the page was read.
                Err(error) if error.problem().is_some_and(|problem| matches!(problem.status, 404 | 409)) => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for dead in entries.iter().filter(|dead| dead.subscription == listed.subscription) {
                write_json(out, dead)?;
                exported += 1;
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(exported);
        }
    }
}
