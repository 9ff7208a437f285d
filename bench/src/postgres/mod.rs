//! `redrive-bench postgres`: the bus on PostgreSQL, compared with hand-written SQL on the same server.
//!
//! Both take every measurement in turns, each on new tables. Then all measurements repeat while another session holds a
//! transaction open, so that no dead row can be vacuumed.

mod cost;
mod measure;
mod open_transaction;
mod ours;
mod raw;
mod report;

use std::time::Duration;

use clap::Args;
use redrive::retry::BoxError;
use redrive::store::PostgresOptions;
use redrive_servers::Postgres as Server;
use tokio_postgres::{Client, NoTls};

use self::measure::{Measure, Sample, Size};
use self::open_transaction::OpenTransaction;
pub(crate) use self::report::Report;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  redrive-bench postgres                              a private server; some three minutes
  redrive-bench postgres process --rounds 5           one part of it, more often
  redrive-bench postgres --url postgres://me@db/test  another server. The schemas redrive_bench and
                                                      redrive_bench_raw are made there, and dropped")]
pub(crate) struct Postgres {
    /// Measurements to take; all by default
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Measure>,
    /// A server to use instead of a private one
    #[arg(long)]
    url: Option<String>,
    /// Rounds of which the median is taken
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Events to store and handle
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    events: u32,
    /// Milliseconds of one storing measurement; latency takes twice as long
    #[arg(long, value_name = "MS", default_value_t = 1500, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    millis: u64,
    /// Skip the measurements with an open transaction
    #[arg(long)]
    no_held: bool,
}

impl Postgres {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        // Dropped at the end of this function.
        let server = if self.url.is_none() { Some(Server::start()?) } else { None };
        let url = self.url.clone().or_else(|| server.as_ref().map(Server::url)).unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.measure(&url))
    }

    async fn measure(&self, url: &str) -> Result<Report, BoxError> {
        let admin = connect(url).await?;
        let version: String = admin.query_one("SHOW server_version", &[]).await?.get(0);
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            let value: String = admin.query_one(&format!("SHOW {setting}"), &[]).await?.get(0);
            if value != "on" {
                return Err(format!("{setting} is {value} on this server: it is measured with on").into());
            }
        }
        let connections = PostgresOptions::default().write_connections;
        let size = Size { events: self.events, time: Duration::from_millis(self.millis), connections };
        let mut report = Report::new(version, size, self.rounds);
        for has_open_transaction in [false, true] {
            if has_open_transaction && self.no_held {
                continue;
            }
            let open = if has_open_transaction { Some(OpenTransaction::begin(url).await?) } else { None };
            for round in 0..self.rounds {
                self.round(url, &admin, size, round, has_open_transaction, &mut report).await?;
            }
            if let Some(open) = open {
                open.end().await?;
            }
        }
        raw::drop_tables(&admin).await?;
        ours::drop_tables(&admin).await?;
        Ok(report)
    }

    async fn round(
        &self,
        url: &str,
        admin: &Client,
        size: Size,
        round: u32,
        has_open_transaction: bool,
        report: &mut Report,
    ) -> Result<(), BoxError> {
        for &measure in Measure::ALL {
            if !self.parts.is_empty() && !self.parts.contains(&measure) {
                continue;
            }
            let mut both: [Option<Sample>; 2] = [None, None];
            // The second finds the disk as the first has left it.
            for side in if round.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
                both[side] = if side == 0 {
                    Some(ours::take(url, admin, measure, size).await?)
                } else {
                    raw::take(url, admin, measure, size).await?
                };
            }
            let [Some(ours), raw] = both else { return Err("a measurement is missing".into()) };
            progress(has_open_transaction, round, measure, &ours, raw.as_ref());
            report.add(has_open_transaction, measure, ours, raw);
        }
        Ok(())
    }
}

/// A connection that ends when it is dropped.
async fn connect(url: &str) -> Result<Client, BoxError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection); // the client reports its errors
    Ok(client)
}

/// Prints progress to standard error; standard output has the figures.
fn progress(has_open_transaction: bool, round: u32, measure: Measure, ours: &Sample, raw: Option<&Sample>) {
    let state = if has_open_transaction { ", with an open transaction" } else { "" };
    let raw = raw.map(|raw| format!("; by hand {raw}")).unwrap_or_default();
    eprintln!("… round {}{state}: {}: {ours}{raw}", round + 1, measure.title());
}
