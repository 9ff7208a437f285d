//! Shared circuit breakers of several buses on one database.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use redrive::events::EventStatus;
use redrive::retry::RetryOverride;
use redrive::retry::breaker::{BreakerConfig, BreakerSnapshot};
use redrive::{Event, EventBus};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Bus that acts as a separate process.
struct Node {
    bus: EventBus,
    fails: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

fn breaker(open_for: Duration) -> BreakerConfig {
    BreakerConfig::builder().min_samples(4).open_for(open_for).build().unwrap()
}

fn address() -> String {
    let server = redrive_servers::Postgres::shared_url().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    let joint = if server.contains('?') { '&' } else { '?' };
    format!("{server}{joint}schema=t{now}")
}

impl Node {
    async fn new(address: &str, fails: bool, open_for: Duration) -> Self {
        let bus = EventBus::open(address).await.unwrap();
        let (fails, calls) = (Arc::new(AtomicBool::new(fails)), Arc::new(AtomicU32::new(0)));
        let (failing, counted) = (Arc::clone(&fails), Arc::clone(&calls));
        bus.subscribe("order.*", move |_: Event| {
            counted.fetch_add(1, Ordering::SeqCst);
            let fails = failing.load(Ordering::SeqCst);
            async move { if fails { Err("down") } else { Ok(()) } }
        })
        .name("mail")
        .retry(RetryOverride::new().max_retries(0))
        .breaker(breaker(open_for))
        .shared_breaker()
        .register()
        .unwrap();
        bus.start().await.unwrap();
        // Until the bus claims its own events, another process may claim them; these events match no subscription.
        comes_true("it takes events up", async || {
            bus.publish("warm.up", &0).enqueue().await.unwrap();
            bus.metrics().await.unwrap().unmatched > 0
        })
        .await;
        Node { bus, fails, calls }
    }

    /// Publishes events that this process handles: each is claimed as it is stored.
    async fn publish(&self, times: usize) {
        for n in 0..times {
            let published = tokio::time::timeout(TIMEOUT, self.bus.publish("order.created", &n));
            published.await.expect("handled here").unwrap();
        }
    }

    fn circuit(&self) -> BreakerSnapshot {
        self.bus.subscriptions()[0].breaker()
    }

    fn is_closed(&self) -> bool {
        self.circuit() == BreakerSnapshot::Closed
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Polls, because a change of the circuit is not signalled.
async fn comes_true(what: &str, is_true: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_true().await {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Separate connection, with a statement for the schema.
async fn connect(address: &str, statement: &str) -> (tokio_postgres::Client, String) {
    let (server, schema) = address.rsplit_once("schema=").unwrap();
    let (client, connection) =
        tokio_postgres::connect(server.trim_end_matches(['?', '&']), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    (client, statement.replace("redrive.", &format!("{schema}.")))
}

async fn number(address: &str, query: &str) -> i64 {
    let (client, query) = connect(address, query).await;
    client.query_one(&query, &[]).await.unwrap().get(0)
}

/// Closes the buses and removes the schema.
async fn end(address: &str, buses: &[&EventBus]) {
    for bus in buses {
        bus.shutdown().await.unwrap();
    }
    let (client, remove) = connect(address, "DROP SCHEMA redrive. CASCADE").await;
    client.batch_execute(&remove.replace(". ", " ")).await.unwrap();
}

/// Advances the database's clock in this schema.
async fn move_time(address: &str, by: Duration) {
    let moved = format!(
        "CREATE OR REPLACE FUNCTION redrive.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
         $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {} $$",
        by.as_millis()
    );
    let (client, moved) = connect(address, &moved).await;
    client.batch_execute(&moved).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_circuit_opens_and_closes_for_all_processes() {
    let (address, open_for) = (address(), Duration::from_secs(60));
    let (one, two) = (Node::new(&address, true, open_for).await, Node::new(&address, true, open_for).await);
    // Two failures are below the minimum of one process; four are enough together.
    one.publish(2).await;
    assert!(one.is_closed());
    two.publish(2).await;
    comes_true("open for both", async || !one.is_closed() && !two.is_closed()).await;
    let before = (one.calls(), two.calls());
    assert_eq!(before, (2, 2));
    let mut parked = Vec::new();
    for node in [&one, &two] {
        parked.push(node.bus.publish("order.created", &7).enqueue().await.unwrap());
    }
    comes_true("parked on both", async || {
        let mut owed = 0;
        for id in &parked {
            owed += one.bus.store().event(*id).await.unwrap().deliveries.len();
        }
        owed == 2
    })
    .await;
    assert_eq!((one.calls(), two.calls()), before, "nobody was called for it");

    // The parked deliveries are due at the probe time; a successful probe closes the circuit for both. The buses read the
    // database's clock at every heartbeat.
    one.fails.store(false, Ordering::SeqCst);
    two.fails.store(false, Ordering::SeqCst);
    move_time(&address, open_for).await;
    comes_true("closed for both", async || one.is_closed() && two.is_closed()).await;
    for id in &parked {
        comes_true("handled", async || one.bus.store().event(*id).await.unwrap().status == EventStatus::Done)
            .await;
    }
    assert_eq!(one.calls() + two.calls(), 6, "each of them once");
    let changes = number(&address, "SELECT generation FROM redrive.circuit").await;
    assert_eq!(changes, 3, "opened, probed, closed: once for all");
    end(&address, &[&one.bus, &two.bus]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_failing_process_opens_only_its_own_circuit() {
    let (address, open_for) = (address(), Duration::from_secs(60));
    let bad = Node::new(&address, true, open_for).await;
    let good = [Node::new(&address, false, open_for).await, Node::new(&address, false, open_for).await];
    let known = "SELECT count(*) FROM redrive.circuit_count";
    comes_true("all are known to each other", async || number(&address, known).await == 3).await;
    bad.publish(4).await;
    assert!(matches!(bad.circuit(), BreakerSnapshot::Open { .. }), "by its own circuit");
    for node in &good {
        node.publish(2).await;
    }
    let reported = "SELECT coalesce(sum(succeeded + failed), 0)::bigint FROM redrive.circuit_count";
    comes_true("all has been reported", async || number(&address, reported).await == 8).await;
    // Every process has synchronised once more.
    for node in &good {
        node.publish(2).await;
    }
    comes_true("reported again", async || number(&address, reported).await == 12).await;
    assert_eq!(
        number(&address, "SELECT count(*) FROM redrive.circuit").await,
        0,
        "nothing was opened for all"
    );
    assert!(good.iter().all(Node::is_closed));
    assert_eq!((bad.calls(), good[0].calls(), good[1].calls()), (4, 4, 4));
    end(&address, &[&bad.bus, &good[0].bus, &good[1].bus]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_probe_reopens_the_shared_circuit() {
    let (address, open_for) = (address(), Duration::from_secs(1));
    let (one, two) = (Node::new(&address, true, open_for).await, Node::new(&address, true, open_for).await);
    one.publish(2).await;
    two.publish(2).await;
    comes_true("open for both", async || !one.is_closed() && !two.is_closed()).await;
    let id = one.bus.publish("order.created", &7).enqueue().await.unwrap();
    let opened = "SELECT coalesce(max(openings), 0) FROM redrive.circuit";
    comes_true("opened again", async || number(&address, opened).await >= 2).await;
    assert_eq!(one.calls() + two.calls(), 5, "one probe");
    // Settled after the circuit was updated.
    comes_true("its attempt has failed", async || {
        one.bus.store().event(id).await.unwrap().status == EventStatus::Dlq
    })
    .await;
    end(&address, &[&one.bus, &two.bus]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_circuit_is_not_shared() {
    let address = address();
    let bus = EventBus::open(&address).await.unwrap();
    bus.subscribe("*", |_: Event| async { Ok::<_, &str>(()) }).register().unwrap();
    bus.start().await.unwrap();
    bus.publish("order.created", &7).await.unwrap();
    assert_eq!(number(&address, "SELECT count(*) FROM redrive.circuit_count").await, 0);
    end(&address, &[&bus]).await;
}
