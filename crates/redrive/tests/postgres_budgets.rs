//! Shared retry budget of several buses on one database.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redrive::events::EventStatus;
use redrive::retry::RetryOverride;
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::budget::BudgetConfig;
use redrive::store::{PostgresOptions, PostgresStore};
use redrive::{Event, EventBus};
use redrive_servers::Schema;
use tokio_postgres::NoTls;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Bus that acts as a separate process.
struct Node {
    bus: EventBus,
    retries: Arc<AtomicU32>,
    /// Number of attempts that fail.
    failures: Arc<AtomicU32>,
}

fn at_once() -> RetryOverride {
    RetryOverride::new().max_retries(99).base_delay_ms(1).max_delay_ms(1)
}

async fn open(schema: &Schema, name: &str) -> EventBus {
    let options = PostgresOptions {
        schema: schema.name().into(),
        instance: name.into(),
        write_connections: 2,
        pool: 2,
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(schema.url(), options).await.unwrap();
    EventBus::builder().on(Arc::new(store)).await.unwrap()
}

impl Node {
    /// The refill is negligible during a test.
    async fn new(schema: &Schema, name: &str, share: f64, failures: u32) -> Self {
        let bus = open(schema, name).await;
        let (retries, failures) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(failures)));
        let (counted, fails) = (Arc::clone(&retries), Arc::clone(&failures));
        bus.subscribe("order.*", move |event: Event| {
            counted.fetch_add(u32::from(event.attempt() > 1), Ordering::SeqCst);
            let fails = event.attempt() <= fails.load(Ordering::SeqCst);
            async move { if fails { Err("down") } else { Ok(()) } }
        })
        .name("mail")
        .retry(at_once())
        .breaker(BreakerConfig::builder().min_samples(1000).build().unwrap())
        .retry_budget(BudgetConfig::new(share, 10, 0.0001).unwrap())
        .shared_budget()
        .register()
        .unwrap();
        bus.start().await.unwrap();
        // Without inline claims, another process may claim the stored events.
        comes_true("it takes events up", async || {
            bus.publish("warm.up", &0).enqueue().await.unwrap();
            bus.metrics().await.unwrap().unmatched > 0
        })
        .await;
        Node { bus, retries, failures }
    }

    async fn enqueue(&self, times: usize) {
        for n in 0..times {
            self.bus.publish("order.created", &n).enqueue().await.unwrap();
        }
    }

    fn retries(&self) -> u32 {
        self.retries.load(Ordering::SeqCst)
    }

    fn left(&self) -> u32 {
        self.bus.subscriptions()[0].retries_left().unwrap()
    }

    async fn has_deferred(&self) -> bool {
        self.bus.metrics().await.unwrap().budget_deferred > 0
    }
}

/// Polls, because a new division of the budget is not signalled.
async fn comes_true(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_true().await {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn number(schema: &Schema, query: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client.query_one(&query.replace("redrive.", &format!("{}.", schema.name())), &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_one_budget_without_loss() {
    let schema = Schema::new().unwrap();
    let one = Node::new(&schema, "one", 0.0, 99).await;
    comes_true("who is alone has all of it", async || one.left() == 10).await;
    let two = Node::new(&schema, "two", 0.0, 99).await;
    comes_true("the other one uses half of the budget", async || one.left() == 5).await;
    one.enqueue(10).await;
    two.enqueue(10).await;
    comes_true("all is spent", async || {
        one.left() == 0 && one.has_deferred().await && two.has_deferred().await
    })
    .await;
    comes_true("all of them wait", async || {
        let depth = one.bus.store().depth().await.unwrap();
        depth.pending + depth.running + depth.waiting == 0 && depth.open_deliveries == 20
    })
    .await;
    assert_eq!(one.retries() + two.retries(), 5, "the second one has brought nothing with it");
    for node in [&one, &two] {
        let metrics = node.bus.metrics().await.unwrap();
        assert_eq!((metrics.done - metrics.unmatched, metrics.dead), (0, 0));
        node.bus.shutdown().await.unwrap();
    }
    // Without a budget, deferred retries run at their due time.
    let after = open(&schema, "after").await;
    let handler = |_: Event| async { Ok::<_, &str>(()) };
    after.subscribe("order.*", handler).name("mail").retry(at_once()).register().unwrap();
    let wait_less =
        "WITH due AS (UPDATE redrive.delivery SET due_at = redrive.now_ms(), ready_at = redrive.now_ms()
                     WHERE ready_at IS NOT NULL RETURNING 1) SELECT count(*) FROM due";
    assert_eq!(number(&schema, wait_less).await, 20);
    after.start().await.unwrap();
    let done = "SELECT count(*) FROM redrive.events WHERE status = 'done' AND type = 'order.created'";
    comes_true("nothing is lost", async || number(&schema, done).await == 20).await;
    assert_eq!(number(&schema, "SELECT count(*) FROM redrive.dead_letter").await, 0);
    after.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_process_spends_only_its_own_share() {
    let schema = Schema::new().unwrap();
    let bad = Node::new(&schema, "bad", 0.5, 99).await;
    comes_true("alone", async || bad.left() == 10).await;
    let good = Node::new(&schema, "good", 0.5, 0).await;
    comes_true("divided", async || bad.left() == 5).await;
    bad.bus.dispatcher().pause();
    for n in 0..20 {
        good.bus.publish("order.created", &n).await.unwrap();
    }
    assert_eq!(good.left(), 5, "earned by its own first attempts, up to half of what all may save");
    good.bus.dispatcher().pause();
    bad.bus.dispatcher().resume();
    bad.enqueue(20).await;
    comes_true("it has spent all it can get", async || bad.left() == 0 && bad.has_deferred().await).await;
    comes_true("all wait", async || {
        let depth = bad.bus.store().depth().await.unwrap();
        depth.pending + depth.running + depth.waiting == 0 && depth.open_deliveries == 20
    })
    .await;
    assert!((5..=15).contains(&bad.retries()), "5 saved up, 10 earned: {}", bad.retries());
    assert_eq!(good.left(), 5);
    // The healthy process has one failure, within its own share.
    bad.bus.dispatcher().pause();
    good.failures.store(1, Ordering::SeqCst);
    good.bus.dispatcher().resume();
    let id = tokio::time::timeout(TIMEOUT, good.bus.publish("order.created", &7).into_future());
    let id = id.await.expect("retried at once").unwrap();
    let event = good.bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.retry_count), (EventStatus::Done, 1));
    for node in [&bad, &good] {
        node.bus.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_does_not_reset_the_shared_budget() {
    let schema = Schema::new().unwrap();
    let first = Node::new(&schema, "one", 0.0, 99).await;
    comes_true("alone", async || first.left() == 10).await;
    first.enqueue(3).await;
    comes_true("all is spent", async || first.left() == 0 && first.has_deferred().await).await;
    assert_eq!(first.retries(), 10);
    first.bus.shutdown().await.unwrap();
    let second = Node::new(&schema, "one", 0.0, 99).await;
    second.enqueue(3).await;
    let mut reported = BTreeSet::new();
    comes_true("it has said three times that it is there", async || {
        reported.insert(number(&schema, "SELECT max(at) FROM redrive.budget_share").await);
        reported.len() >= 4
    })
    .await;
    assert_eq!((second.left(), second.retries()), (0, 0));
    assert!(second.has_deferred().await, "they wait");
    second.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_budget_is_not_shared() {
    let schema = Schema::new().unwrap();
    let bus = open(&schema, "one").await;
    let handler = |event: Event| async move { if event.attempt() == 1 { Err("once") } else { Ok(()) } };
    let retry = RetryOverride::new().base_delay_ms(1);
    bus.subscribe("*", handler).retry(retry).retry_budget(BudgetConfig::default()).register().unwrap();
    bus.start().await.unwrap();
    bus.publish("order.created", &7).await.unwrap();
    assert_eq!(bus.subscriptions()[0].retries_left(), Some(99));
    assert_eq!(number(&schema, "SELECT count(*) FROM redrive.budget_share").await, 0);
    bus.shutdown().await.unwrap();
}
