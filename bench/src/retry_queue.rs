//! `redrive-bench retry-queue`: the usual queries on the view `retry_queue` of PostgreSQL.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use futures_util::future::join_all;
use redrive::retry::decision::DeadReason;
use redrive::retry::{BoxError, Clock, Timestamp};
use redrive_servers::Postgres;
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, Claimed, EventId, EventType, Metadata, NewEvent, PostgresOptions, PostgresStore, Routing,
    Settlement, SubscriptionName, Verdict,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::{Client, NoTls};

use crate::report::{Line, Report};

/// Tasks in one publish.
const BATCH: u32 = 1000;

/// Part of the messages that are pending: the newest ones, as where finished messages are kept for some days.
const PENDING_PART: u32 = 10;

/// One of as many ended messages is in review.
const FAILED_PART: usize = 50;

/// Age of the first message.
const DAYS_MS: i64 = 7 * 24 * 3_600_000;

/// Key, description and text of each query.
const QUERIES: [(&str, &str, &str); 6] = [
    (
        "due",
        "the 100 messages that are due next",
        "SELECT * FROM retry_queue WHERE status = 'pending' AND next_retry_at <= now() ORDER BY next_retry_at LIMIT 100",
    ),
    (
        "next",
        "the 100 pending messages with the earliest time",
        "SELECT * FROM retry_queue WHERE status = 'pending' ORDER BY next_retry_at LIMIT 100",
    ),
    (
        "failed",
        "100 messages in review",
        "SELECT * FROM retry_queue WHERE status = 'failed' ORDER BY next_retry_at LIMIT 100",
    ),
    ("by_status", "count by status", "SELECT status, count(*) FROM retry_queue GROUP BY status"),
    (
        "by_queue",
        "pending messages by queue",
        "SELECT original_queue, count(*) FROM retry_queue WHERE status = 'pending' GROUP BY original_queue",
    ),
    ("one", "one message by its id", "SELECT * FROM retry_queue WHERE message_id = 'm-77'"),
];

/// Arguments of the benchmark.
#[derive(Debug, Args)]
pub(crate) struct RetryQueue {
    /// Messages in the view; a tenth of them is pending
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    messages: u32,
    /// Repetitions of each query, of which the median is taken
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Leave all messages pending
    #[arg(long)]
    all_pending: bool,
}

impl RetryQueue {
    pub(crate) fn run(self) -> Result<Report, BoxError> {
        let server = Postgres::start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.measure(&server.url()))
    }

    async fn measure(&self, url: &str) -> Result<Report, BoxError> {
        let store = PostgresStore::open(url, PostgresOptions::default()).await?;
        let ended = if self.all_pending { 0 } else { self.messages - self.messages / PENDING_PART };
        let (sink, mut claims) = ClaimSink::new(BATCH as usize);
        for first in (0..self.messages).step_by(BATCH as usize) {
            let last = (first + BATCH).min(self.messages);
            store.attach((first < ended).then(|| sink.clone()));
            store.append((first..last).map(task).collect::<Result<_, _>>()?).await?;
            end(&store, &mut claims).await?;
        }
        store.attach(None);
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        // What autovacuum does a minute later.
        client.batch_execute("VACUUM ANALYZE").await?;
        let mut lines = Vec::new();
        for (key, what, query) in QUERIES {
            let mut line = Line::new(key, what, "ms", "below 50");
            line.ours = self.times(&client, query).await?;
            lines.push(line);
        }
        store.close().await?;
        let pending = self.messages - ended;
        let note = format!(
            "{} messages of a kibibyte, {pending} of them pending; medians of {} repetitions",
            self.messages, self.rounds
        );
        Ok(Report { lines, note })
    }

    /// Milliseconds of each repetition, all rows read.
    async fn times(&self, client: &Client, query: &str) -> Result<Vec<f64>, BoxError> {
        let mut times = Vec::new();
        for _ in 0..self.rounds {
            let began = Instant::now();
            client.query(query, &[]).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times)
    }
}

/// A task that was due in the last days, ten milliseconds after its predecessor.
fn task(number: u32) -> Result<NewEvent, BoxError> {
    let now = Clock::system().now();
    let due_at = Timestamp::from_millis(now.as_millis() - DAYS_MS + i64::from(number) * 10);
    let task = format!(
        r#"{{"message_id":"m-{number}","original_payload":{{"text":"{}"}},"original_queue":"orders.{}","error_reason":"timed out",
            "retry_count":0,"max_retries":3,"next_retry_at_ms":{}}}"#,
        "x".repeat(1000),
        number % 7,
        due_at.as_millis()
    );
    Ok(NewEvent {
        id: EventId::new(),
        event_type: EventType::new("retry.task")?,
        payload: Arc::from(task),
        metadata: Metadata::new(),
        created_at: now,
        due_at,
        is_scheduled: false,
        retry: None,
        to: Routing::Each(vec![SubscriptionName::new("republisher")?]),
    })
}

/// Ends all claimed tasks, a few of them in review.
async fn end(store: &PostgresStore, claims: &mut UnboundedReceiver<Claimed>) -> Result<(), BoxError> {
    let claimed = std::iter::from_fn(|| claims.try_recv().ok());
    let settled = claimed.enumerate().map(|(place, claimed)| {
        let is_failed = place % FAILED_PART == 0;
        let verdict = if is_failed { Verdict::Dead(DeadReason::Permanent) } else { Verdict::Done };
        store.settle(claimed, Settlement::new(Clock::system().now(), verdict))
    });
    join_all(settled).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(())
}
