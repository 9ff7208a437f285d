//! Webhooks and the server, beside the same work without what makes it durable.

mod deliveries;
mod fairness;
mod ingest;
mod memory;
mod receiver;
mod server;

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
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
    /// Only this line
    #[arg(long)]
    only: Option<Only>,
    /// Only what the process occupies, over so many deliveries
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

    /// Each line in rounds of its own: what one leaves to the disk is not to be the next one's burden.
    async fn all(&self, folder: &Path) -> Result<Report, BoxError> {
        let time = Duration::from_secs(u64::from(self.seconds));
        let is_wanted = |line| self.only.is_none_or(|only| only == line);
        let mut lines = Vec::new();
        if is_wanted(Only::Deliveries) {
            let mut sent =
                Line::new("deliveries", "deliveries, beside the bare client", "/s", "at least 0.6");
            for _ in self.rounds("deliveries") {
                sent.beside.push(deliveries::bare(self.deliveries).await?);
                sent.ours.push(deliveries::ours(folder, self.deliveries).await?);
            }
            lines.push(sent);
        }
        if is_wanted(Only::Ingest) {
            let mut taken =
                Line::new("ingest", "requests taken in, beside a bare handler", "/s", "at least 0.7");
            for _ in self.rounds("ingest") {
                taken.beside.push(ingest::bare(folder, time).await?);
                taken.ours.push(ingest::ours(folder, time).await?);
            }
            lines.push(taken);
        }
        if is_wanted(Only::Fairness) {
            let mut latencies = fairness::Latencies::default();
            for _ in self.rounds("fairness") {
                latencies.round(folder, time).await?;
            }
            let (beside_silent, beside_none) = latencies.compared();
            let what = "p99 of 99 endpoints beside one that is silent, beside none";
            lines.push(
                Line::new("fairness", what, "µs", "at most 1.1").once(beside_silent, Some(beside_none)),
            );
            let (first, last) = latencies.control();
            let what = "the same beside none twice: what the machine does alone";
            lines.push(Line::new("control", what, "µs", "").once(first, Some(last)));
        }
        let note = format!(
            "SQLite with every commit synced; {} deliveries and {} s a round, {} rounds in turns: medians, ratios those of each round; p99 over all rounds together",
            self.deliveries, self.seconds, self.rounds
        );
        Ok(Report { lines, note })
    }

    fn rounds(&self, what: &str) -> impl Iterator<Item = u32> {
        (1..=self.rounds).inspect(move |round| eprintln!("{what}: round {round} of {}", self.rounds))
    }
}
