//! `redrive stats`: counts events by status.

use std::io::Write;

use clap::Args;

use crate::api::{EndpointSecrets, IfMissing, ServerArgs};
use crate::database::DatabaseArgs;
use crate::failure::Failure;
use crate::format;
use crate::screen::Screen;

/// Count events by status, open deliveries and bytes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive stats
  redrive stats --json | jq .dlq")]
pub(crate) struct Stats {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

impl Stats {
    pub(crate) fn run(&self, out: &mut impl Write, screen: Screen) -> Result<(), Failure> {
        let db = &self.database.db;
        self.server.run(db, EndpointSecrets::Closed, IfMissing::Fail, out, screen, async |api| {
            let stats = api.stats().await?;
            api.print_response(stats, |api, stats| {
                let count = |number| Some(format::count(number));
                // Only the process that dispatches knows what is in flight.
                let in_flight = if api.is_database() { None } else { count(stats.in_flight) };
                let wal = (stats.wal_bytes > 0).then(|| format::bytes(stats.wal_bytes));
                Ok(api.details(
                    "events",
                    [
                        ("pending", count(stats.pending)),
                        ("processing", count(stats.processing)),
                        ("done", count(stats.done)),
                        ("dlq", count(stats.dlq)),
                        ("open deliveries", count(stats.open_deliveries)),
                        ("in flight", in_flight),
                        ("database", Some(format::bytes(stats.file_bytes))),
                        ("write-ahead log", wal),
                    ],
                )?)
            })
        })
    }
}
