//! Webhooks and the server, compared with the same work without durability.

mod deliveries;
mod fairness;
mod ingest;
mod memory;
mod receiver;
mod server;

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use redrive::retry::BoxError;

pub(crate) use self::ingest::BareIngest;
use crate::report::{Line, Report};

/// Arguments of the benchmark.
#[derive(Debug, Args)]
pub(crate) struct Webhooks {
    /// Rounds of each contender, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Deliveries in each round
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    deliveries: u32,
    /// Seconds of each round of ingest and fairness
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=120))]
    seconds: u32,
    /// Only this line
    #[arg(long)]
    only: Option<Only>,
    /// Only measure memory, over this many deliveries
    #[arg(long, value_name = "DELIVERIES", value_parser = clap::value_parser!(u32).range(1000..))]
    memory: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Only {
    Deliveries,
    Ingest,
    Fairness,
}

impl Webhooks {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let folder = tempfile::tempdir()?;
        runtime.block_on(async {
            match self.memory {
                Some(deliveries) => {
                    let (early, late) = memory::measure(folder.path(), deliveries).await?;
                    let what = "memory after all deliveries, vs after a tenth of them";
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

    /// Each line has its own rounds: pending disk writes of one must not burden the next.
    async fn all(&self, folder: &Path) -> Result<Report, BoxError> {
        let time = Duration::from_secs(u64::from(self.seconds));
        let is_wanted = |line| self.only.is_none_or(|only| only == line);
        let mut lines = Vec::new();
        if is_wanted(Only::Deliveries) {
            let mut sent = Line::new("deliveries", "deliveries, vs bare client", "/s", "at least 0.6");
            for _ in self.rounds("deliveries") {
                sent.baseline.push(deliveries::bare(self.deliveries).await?);
                sent.ours.push(deliveries::ours(folder, self.deliveries).await?);
            }
            lines.push(sent);
        }
        if is_wanted(Only::Ingest) {
            let mut taken = Line::new("ingest", "requests ingested, vs bare handler", "/s", "at least 0.7");
            for _ in self.rounds("ingest") {
                taken.baseline.push(ingest::bare(folder, time).await?);
                taken.ours.push(ingest::ours(folder, time).await?);
            }
            lines.push(taken);
        }
        if is_wanted(Only::Fairness) {
            let mut latencies = fairness::Latencies::default();
            for _ in self.rounds("fairness") {
                latencies.round(folder, time).await?;
            }
            let (with_silent, without_silent) = latencies.compared();
            let what = "p99 of 99 endpoints, with one silent endpoint vs without";
            lines.push(
                Line::new("fairness", what, "µs", "at most 1.1").once(with_silent, Some(without_silent)),
            );
            let (first, last) = latencies.control();
            let what = "control: p99 without a silent endpoint, twice";
            lines.push(Line::new("control", what, "µs", "").once(first, Some(last)));
        }
        let note = format!(
            "SQLite with every commit synced; {} deliveries and {} s a round, {} alternating rounds; medians, also of the ratios of each round; p99 over all rounds",
            self.deliveries, self.seconds, self.rounds
        );
        Ok(Report { lines, note })
    }

    fn rounds(&self, what: &str) -> impl Iterator<Item = u32> {
        (1..=self.rounds).inspect(move |round| eprintln!("{what}: round {round} of {}", self.rounds))
    }
}
