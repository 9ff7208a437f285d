//! The retry scheduler, compared with a loop that stores nothing.

mod broker;
mod drift;
mod throughput;
mod waiting;

use std::time::Duration;

use clap::{Args, ValueEnum};
use redrive::retry::BoxError;
use redrive_servers::{Postgres, RabbitMq};

use crate::report::{Line, Report};

/// Arguments of the benchmark.
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
    /// Store of the tasks
    #[arg(long, value_enum, default_value = "postgres")]
    store: StoreKind,
    /// Only measure memory and lateness while this many tasks wait
    #[arg(long, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1000..))]
    waiting: Option<u32>,
}

/// Store of the tasks.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    /// A private PostgreSQL server with its default durability
    Postgres,
    /// A file, with every commit synced
    Sqlite,
}

/// Servers and the store of the tasks.
struct Place {
    broker: RabbitMq,
    postgres: Option<Postgres>,
    folder: tempfile::TempDir,
}

impl Place {
    /// A new store.
    fn fresh(&self) -> String {
        let name = format!("b{}", uuid::Uuid::new_v4().simple());
        match &self.postgres {
            Some(server) => format!("{}?schema={name}", server.url()),
            None => self.folder.path().join(name).display().to_string(),
        }
    }
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
        let mut at_once = Line::new("at_once", "messages due on arrival, vs bare loop", "/s", "at least 0.5");
        let mut waited = Line::new("waited", "messages stored until due, vs bare loop", "/s", "at least 0.5");
        let mut p50 = Line::new("drift_p50", "lateness p50 at 200/s", "ms", "");
        let mut p99 = Line::new("drift_p99", "lateness p99 at 200/s", "ms", "below 100");
        for round in 0..self.rounds {
            eprintln!("round {} of {}", round + 1, self.rounds);
            let bare = throughput::bare(place, self.messages).await?;
            at_once.baseline.push(bare);
            waited.baseline.push(bare);
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
        let lines = vec![
            Line::new("memory", "memory with all tasks waiting, vs a tenth of them", "MiB", "flat")
                .once(measured.late, Some(measured.early)),
            Line::new("ingested", "tasks ingested", "/s", "").once(measured.per_second, None),
            Line::new("drift_p50", "lateness p50 at 200/s meanwhile", "ms", "")
                .once(measured.drift.quantile(0.5), None),
            Line::new("drift_p99", "lateness p99 at 200/s meanwhile", "ms", "below 100")
                .once(measured.drift.quantile(0.99), None),
        ];
        Ok(Report {
            lines,
            note: format!("{:?}; {tasks} tasks wait; drift over {} s", self.store, self.seconds),
        })
    }
}
