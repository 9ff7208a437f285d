//! Webhooks and the server, beside the same work without what makes it durable.

mod deliveries;
mod fairness;
mod ingest;
mod memory;
mod receiver;
mod server;

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use redrive::BoxError;
use serde_json::{Value, json};

pub(crate) use self::ingest::BareIngest;

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

/// One line of the report.
#[derive(Debug)]
struct Line {
    key: &'static str,
    what: &'static str,
    unit: &'static str,
    ours: Vec<f64>,
    beside: Vec<f64>,
    goal: &'static str,
}

/// All that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    lines: Vec<Line>,
    note: String,
}

impl Webhooks {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let folder = tempfile::tempdir()?;
        runtime.block_on(async {
            match self.memory {
                Some(deliveries) => {
                    let (early, late) = memory::measure(folder.path(), deliveries).await?;
                    let line = Line {
                        key: "memory",
                        what: "memory after all deliveries, beside after a tenth of them",
                        unit: "MiB",
                        ours: vec![late],
                        beside: vec![early],
                        goal: "flat",
                    };
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
        let line =
            |key, what, unit, goal| Line { key, what, unit, ours: Vec::new(), beside: Vec::new(), goal };
        let mut sent = line("deliveries", "deliveries, beside the bare client", "/s", "at least 0.6");
        let mut taken = line("ingest", "requests taken in, beside a bare handler", "/s", "at least 0.7");
        let mut fair = line(
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

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Line {
    fn ratio(&self) -> f64 {
        let ratios: Vec<f64> =
            self.ours.iter().zip(&self.beside).map(|(ours, beside)| ours / beside).collect();
        median(&ratios)
    }
}

impl Report {
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:<66}{:>10}{:>10}{:>8}\n", "", "Redrive", "beside", "ratio");
        for line in &self.lines {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<66}{:>10.0}{:>10.0}{:>8.2}   {} ({})",
                line.what,
                median(&line.ours),
                median(&line.beside),
                line.ratio(),
                line.unit,
                line.goal
            );
        }
        let _ = writeln!(text, "\n{}", self.note);
        text
    }

    pub(crate) fn json(&self) -> Value {
        let lines = self.lines.iter().map(|line| {
            let value = json!({"redrive": median(&line.ours), "beside": median(&line.beside), "ratio": line.ratio(),
                "rounds": line.ours, "rounds_beside": line.beside});
            (line.key.to_owned(), value)
        });
        Value::Object(lines.collect())
    }
}
