//! The retry scheduler, beside a loop that does the same without keeping anything.

mod broker;
mod drift;
mod throughput;
mod waiting;

use std::fmt::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};
use redrive::BoxError;
use redrive_servers::{Postgres, RabbitMq};
use serde_json::{Value, json};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct Scheduler {
    /// Rounds of each contender, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Messages in each round
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..))]
    messages: u32,
    /// Seconds over which the drift is measured, at 200 messages a second
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Where tasks are kept
    #[arg(long, value_enum, default_value = "postgres")]
    store: StoreKind,
    /// Only what the process occupies, and how late messages are, while so many tasks wait
    #[arg(long, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1000..))]
    waiting: Option<u32>,
}

/// Where tasks are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    /// A private PostgreSQL server with its default durability
    Postgres,
    /// A file, with every commit synced
    Sqlite,
}

/// The servers, and where a scheduler keeps its tasks.
struct Place {
    broker: RabbitMq,
    postgres: Option<Postgres>,
    folder: tempfile::TempDir,
}

impl Place {
    /// A store that nobody has used.
    fn fresh(&self) -> String {
        let name = format!("b{}", uuid::Uuid::new_v4().simple());
        match &self.postgres {
            Some(server) => format!("{}?schema={name}", server.url()),
            None => self.folder.path().join(name).display().to_string(),
        }
    }
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

impl Scheduler {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        let place = Place {
            broker: RabbitMq::start()?,
            postgres: if self.store == StoreKind::Postgres { Some(Postgres::start()?) } else { None },
            folder: tempfile::tempdir()?,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.waiting {
                Some(tasks) => self.waiting(&place, tasks).await,
                None => self.all(&place).await,
            }
        })
    }

    async fn all(&self, place: &Place) -> Result<Report, BoxError> {
        let line =
            |key, what, unit, goal| Line { key, what, unit, ours: Vec::new(), beside: Vec::new(), goal };
        let mut at_once = line(
            "at_once",
            "messages that are due when they come, beside the bare loop",
            "/s",
            "at least 0.5",
        );
        let mut waited =
            line("waited", "messages that wait on disk first, beside the bare loop", "/s", "at least 0.5");
        let mut p50 = line("drift_p50", "p50 of the drift at 200/s", "ms", "");
        let mut p99 = line("drift_p99", "p99 of the drift at 200/s", "ms", "below 100");
        for round in 0..self.rounds {
            eprintln!("round {} of {}", round + 1, self.rounds);
            let bare = throughput::bare(place, self.messages).await?;
            at_once.beside.push(bare);
            waited.beside.push(bare);
            at_once.ours.push(throughput::ours(place, self.messages, Duration::ZERO).await?);
            waited.ours.push(throughput::ours(place, self.messages, throughput::WAIT).await?);
        }
        let drift = drift::measure(place, &place.fresh(), self.seconds).await?;
        p50.ours.push(drift.quantile(0.5));
        p99.ours.push(drift.quantile(0.99));
        let note = format!(
            "{:?}, every commit synced; {} messages a round, medians of {} rounds in turns; drift over {} s",
            self.store, self.messages, self.rounds, self.seconds
        );
        Ok(Report { lines: vec![at_once, waited, p50, p99], note })
    }

    async fn waiting(&self, place: &Place, tasks: u32) -> Result<Report, BoxError> {
        let measured = waiting::measure(place, tasks, self.seconds).await?;
        let line = |key, what, unit, ours, beside: Option<f64>, goal| Line {
            key,
            what,
            unit,
            ours: vec![ours],
            beside: beside.into_iter().collect(),
            goal,
        };
        let lines = vec![
            line(
                "memory",
                "memory with all tasks waiting, beside with a tenth",
                "MiB",
                measured.late,
                Some(measured.early),
                "flat",
            ),
            line("taken_in", "tasks taken in", "/s", measured.per_second, None, ""),
            line(
                "drift_p50",
                "p50 of the drift at 200/s meanwhile",
                "ms",
                measured.drift.quantile(0.5),
                None,
                "",
            ),
            line(
                "drift_p99",
                "p99 of the drift at 200/s meanwhile",
                "ms",
                measured.drift.quantile(0.99),
                None,
                "below 100",
            ),
        ];
        Ok(Report {
            lines,
            note: format!("{:?}; {tasks} tasks wait; drift over {} s", self.store, self.seconds),
        })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Line {
    fn ratio(&self) -> Option<f64> {
        let ratios: Vec<f64> =
            self.ours.iter().zip(&self.beside).map(|(ours, beside)| ours / beside).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }
}

impl Report {
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:<66}{:>10}{:>10}{:>8}\n", "", "Redrive", "beside", "ratio");
        for line in &self.lines {
            let beside =
                if line.beside.is_empty() { String::new() } else { format!("{:.0}", median(&line.beside)) };
            let ratio = line.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<66}{:>10.1}{beside:>10}{ratio:>8}   {} {}",
                line.what,
                median(&line.ours),
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
