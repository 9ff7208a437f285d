//! Webhooks and the server, beside the same work without what makes it durable.

mod deliveries;
mod fairness;
mod ingest;
mod memory;
mod receiver;
mod server;

use std::time::Duration;

use clap::Args;
use redrive::BoxError;

pub(crate) use self::ingest::BareIngest;
use crate::report::{Line, Report};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct Webhooks {
    /// Rounds of each contender, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Deliveries in each round
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    deliveries: u32,
    /// Seconds of each round of ingest and of the dead endpoint
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=120))]
    seconds: u32,
    /// Only what the process occupies, over so many deliveries
    #[arg(long, value_name = "DELIVERIES", value_parser = clap::value_parser!(u32).range(1000..))]
    memory: Option<u32>,
}

impl Webhooks {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let folder = tempfile::tempdir()?;
        runtime.block_on(async {
            match self.memory {
                Some(deliveries) => {
                    let (early, late) = memory::measure(folder.path(), deliveries).await?;
                    let what = "memory after all deliveries, beside after a tenth of them";
                    let line = Line::new("memory", what, "MiB", "flat").once(late, Some(early));
                    Ok(Report {
                        lines: vec![line],
                        note: format!("{deliveries} deliveries to 100 endpoints"),
                    })
                }
                None => self.all(folder.path()).await,
            }
        })
    }

    async fn all(&self, folder: &std::path::Path) -> Result<Report, BoxError> {
        let mut sent = Line::new("deliveries", "deliveries, beside the bare client", "/s", "at least 0.6");
        let mut taken = Line::new("ingest", "requests taken in, beside a bare handler", "/s", "at least 0.7");
        let mut fair = Line::new(
            "fairness",
            "p99 of 99 endpoints beside one that is silent, beside none",
            "µs",
            "at most 1.1",
        );
        let time = Duration::from_secs(u64::from(self.seconds));
        for round in 0..self.rounds {
            eprintln!("round {} of {}", round + 1, self.rounds);
            sent.beside.push(deliveries::bare(self.deliveries).await?);
            sent.ours.push(deliveries::ours(folder, self.deliveries).await?);
            taken.beside.push(ingest::bare(folder, time).await?);
            taken.ours.push(ingest::ours(folder, time).await?);
            fair.beside.push(p99(fairness::latencies(folder, false, time).await?));
            fair.ours.push(p99(fairness::latencies(folder, true, time).await?));
        }
        let note = format!(
            "SQLite with every commit synced; {} deliveries and {} s a round, medians of {} rounds in turns; ratios are those of each round",
            self.deliveries, self.seconds, self.rounds
        );
        Ok(Report { lines: vec![sent, taken, fair], note })
    }
}

#[allow(clippy::cast_precision_loss)] // microseconds of seconds
fn p99(mut all: Vec<u64>) -> f64 {
    all.sort_unstable();
    all.get(all.len() * 99 / 100).copied().unwrap_or_default() as f64
}
