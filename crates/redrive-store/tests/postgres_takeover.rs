//! Takeover of the claims of dead processes, and only of those: with large tables, long locks, server crashes and clock jumps.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_store::postgres::Durability;
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, Claimed, EventId, EventStatus, Finished, PostgresOptions, PostgresStore, Stats, Store,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::Client;

use crate::postgres_proxy::Proxy;
use crate::postgres_server::{Schema, connect, done, event, named, now, server};

const SHORT: Duration = Duration::from_millis(400);
const HOUR: Duration = Duration::from_secs(3600);

/// Statements that wait for no lock take milliseconds. The rest is for a busy machine.
const NO_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

async fn open(options: PostgresOptions) -> PostgresStore {
    PostgresStore::open(&server(), options).await.unwrap()
}

fn attach(store: &PostgresStore, slots: usize) -> UnboundedReceiver<Claimed> {
    let (sink, claims) = ClaimSink::new(slots);
    store.attach(Some(sink));
    claims
}

/// Publishes one event that is running at once.
async fn start(store: &PostgresStore, claims: &mut UnboundedReceiver<Claimed>) -> (EventId, Claimed) {
    let new = event();
    let id = new.id;
    store.append(vec![new]).await.unwrap();
    (id, claims.try_recv().unwrap())
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Fails if the work waits for a lock.
async fn without_waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_WAIT_TIMEOUT, work).await.unwrap_or_else(|_| panic!("{what} waits"))
}

async fn execute(schema: &Schema, statement: &str) -> u64 {
    connect().await.execute(&schema.sql(statement), &[]).await.unwrap()
}

async fn number(schema: &Schema, query: &str) -> i64 {
    connect().await.query_one(&schema.sql(query), &[]).await.unwrap().get(0)
}

/// Waits until a statement in this schema is blocked by a lock.
async fn wait_for_blocked_statement(schema: &Schema) {
    let observer = connect().await;
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND position($1 in query) > 0 AND pid <> pg_backend_pid()";
    eventually("a statement is blocked", async || {
        observer.query_one(waiting, &[&schema.name]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_keeps_its_heartbeat_and_lease_during_a_long_takeover() {
    let schema = Schema::new();
    let dead = open(named(&schema, "dead", SHORT)).await;
    let mut claims = attach(&dead, 10);
    let (id, _lost) = start(&dead, &mut claims).await;
    let successor = Arc::new(open(named(&schema, "successor", Duration::from_secs(3))).await);
    successor.heartbeat().await.unwrap();
    let mut client = connect().await;
    let blocking = client.transaction().await.unwrap();
    blocking.batch_execute(&schema.sql("SELECT 1 FROM redrive.event FOR UPDATE")).await.unwrap();
    drop(dead);
    let leading = tokio::spawn({
        let successor = Arc::clone(&successor);
        async move {
            loop {
                let pause = successor.maintain(now(), None).await.unwrap_or(SHORT);
                tokio::time::sleep(pause).await;
            }
        }
    });
    wait_for_blocked_statement(&schema).await;
    for _ in 0..5 {
        without_waiting("a heartbeat", successor.heartbeat()).await.unwrap();
    }
    blocking.commit().await.unwrap();
    eventually("the event is taken over", async || {
        successor.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    assert_eq!(successor.event(id).await.unwrap().retry_count, 1);
    leading.abort();
}

/// More claims than fit into one page.
const MANY: i64 = 12_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_takeover_resumes_and_charges_no_attempt_twice() {
    let schema = Schema::new();
    let silent = open(named(&schema, "silent", SHORT)).await;
    let mut claims = attach(&silent, 10);
    let (_, late) = start(&silent, &mut claims).await;
    execute(
        &schema,
        &format!(
            "INSERT INTO redrive.event (id, created_at, updated_at, due_at, owner, token, status, type)
             SELECT gen_random_uuid(), 1, 1, 1, e.owner, e.token, 1, 'order.created'
             FROM redrive.event e, generate_series(2, {MANY})"
        ),
    )
    .await;
    let options =
        PostgresOptions { statement_timeout: Duration::from_secs(2), ..named(&schema, "successor", SHORT) };
    let successor = open(options).await;
    // Blocks the last event.
    let mut client = connect().await;
    let blocking = client.transaction().await.unwrap();
    let last = schema.sql("SELECT 1 FROM redrive.event ORDER BY key DESC LIMIT 1 FOR UPDATE");
    blocking.batch_execute(&last).await.unwrap();
    eventually("a part is taken over", async || {
        let _ = successor.maintain(now(), None).await;
        number(&schema, "SELECT count(*) FROM redrive.event WHERE status = 0").await > 0
    })
    .await;
    let left = number(&schema, "SELECT count(*) FROM redrive.event WHERE status = 1").await;
    assert!(left > 0, "the rest is not taken over yet");
    assert_eq!(
        number(&schema, "SELECT count(*) FROM redrive.process WHERE instance = 'silent'").await,
        1,
        "the process is not deleted before all its claims are released"
    );
    let diagnostics = successor.diagnostics().await.unwrap();
    let is_alive =
        diagnostics.processes.iter().find(|process| process.instance == "silent").unwrap().is_alive;
    assert!(!is_alive && diagnostics.abandoned == left.unsigned_abs(), "{diagnostics:?}");
    // The process wakes up, and does not know yet that it was declared dead.
    silent.attach(None);
    let mut claims = attach(&silent, 1);
    silent.append(vec![event()]).await.unwrap();
    assert!(claims.try_recv().is_err(), "a process declared dead gets no claims");
    assert_eq!(silent.settle(late, done()).await.unwrap(), Finished::Fenced, "the claim is fenced");
    silent.heartbeat().await.unwrap();
    assert_eq!(silent.claim(now()).await.unwrap(), 1, "it has registered again under another key");

    blocking.commit().await.unwrap();
    eventually("the rest is taken over", async || {
        silent.heartbeat().await.unwrap();
        successor.maintain(now(), None).await.unwrap();
        number(&schema, "SELECT count(*) FROM redrive.process WHERE instance = 'silent'").await == 1
    })
    .await;
    let charged = |count: &str| format!("SELECT count(*) FROM redrive.event WHERE retry_count {count}");
    assert_eq!(number(&schema, &charged("= 1")).await, MANY);
    assert_eq!(number(&schema, &charged("> 1")).await, 0, "no attempt is charged twice");
    assert_eq!(number(&schema, "SELECT count(*) FROM redrive.attempt").await, MANY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_takeover_does_not_block_others() {
    let schema = Schema::new();
    let (one, two) = (open(named(&schema, "one", SHORT)).await, open(named(&schema, "two", SHORT)).await);
    let (mut ones, mut twos) = (attach(&one, 1), attach(&two, 1));
    let (first, _lost) = start(&one, &mut ones).await;
    let (second, _also_lost) = start(&two, &mut twos).await;
    drop((one, two));
    let successor = open(named(&schema, "successor", SHORT)).await;
    let mut client = connect().await;
    let blocking = client.transaction().await.unwrap();
    let lock = format!("SELECT 1 FROM redrive.event WHERE id = '{first}' FOR UPDATE");
    blocking.batch_execute(&schema.sql(&lock)).await.unwrap();
    let taken_over = async |id: EventId| {
        let _ = successor.maintain(now(), None).await;
        successor.event(id).await.unwrap().status == EventStatus::Pending
    };
    eventually("the second one is taken over", async || taken_over(second).await).await;
    assert_eq!(successor.event(first).await.unwrap().status, EventStatus::Processing);
    blocking.commit().await.unwrap();
    eventually("the first one as well", async || taken_over(first).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_after_an_outage_declares_no_live_process_dead() {
    let schema = Schema::new();
    let lives = open(named(&schema, "lives", Duration::from_secs(15))).await;
    let mut claims = attach(&lives, 1);
    let (_, claimed) = start(&lives, &mut claims).await;
    // Like an outage of the server: all leases have expired.
    schema.move_time(HOUR).await;
    let starts = open(named(&schema, "starts", Duration::from_secs(15))).await;
    assert!(starts.recover(now()).await.unwrap().is_empty());
    starts.maintain(starts.clock().now(), None).await.unwrap();
    lives.heartbeat().await.unwrap();
    assert_eq!(lives.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_after_all_others_died_takes_over_within_seconds() {
    let schema = Schema::new();
    let dead = open(named(&schema, "dead", Duration::from_secs(6))).await;
    let mut claims = attach(&dead, 1);
    let (id, _lost) = start(&dead, &mut claims).await;
    drop(dead);
    schema.move_time(HOUR).await;
    let left = open(named(&schema, "left", Duration::from_secs(6))).await;
    let began = Instant::now();
    assert!(
        left.recover(now()).await.unwrap().is_empty(),
        "it waits for live processes to renew their leases"
    );
    eventually("the event is taken over", async || {
        left.maintain(left.clock().now(), None).await.unwrap();
        left.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(2 + 10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_and_heartbeats_do_not_wait_for_tasks_of_the_leader() {
    let schema = Schema::new();
    let (leader, other) = (Arc::new(open(schema.options()).await), open(schema.options()).await);
    let mut claims = attach(&leader, 1);
    let (_, claimed) = start(&leader, &mut claims).await;
    leader.settle(claimed, done()).await.unwrap();
    leader.maintain(now(), None).await.unwrap();
    let mut client = connect().await;
    let blocking = client.transaction().await.unwrap();
    blocking.batch_execute(&schema.sql("SELECT 1 FROM redrive.event FOR UPDATE")).await.unwrap();
    let later = now() + Duration::from_secs(120);
    let purging = tokio::spawn({
        let leader = Arc::clone(&leader);
        async move { leader.maintain(later, Some(Duration::ZERO)).await }
    });
    wait_for_blocked_statement(&schema).await;
    // Longer than the leader's lease.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        without_waiting("an election", other.maintain(now(), None)).await.unwrap();
        without_waiting("a heartbeat", other.heartbeat()).await.unwrap();
        without_waiting("the leader's heartbeat", leader.heartbeat()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(leader.leads().await.unwrap() && !other.leads().await.unwrap(), "it still leads");
    blocking.commit().await.unwrap();
    purging.await.unwrap().unwrap();
    assert_eq!(leader.stats().await.unwrap().done, 0);
}

/// Undoes settlements, like a server crash before they were on disk.
async fn unsettle(schema: &Schema) -> u64 {
    execute(schema, "UPDATE redrive.event SET status = 1, due_at = created_at WHERE status = 3").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_only_store_notices_a_server_crash_without_a_lost_connection() {
    let schema = Schema::new();
    let store = open(PostgresOptions { poll_only: true, ..schema.options() }).await;
    let mut claims = attach(&store, 10);
    let (_, owned) = start(&store, &mut claims).await;
    for _ in 0..3 {
        let (_, claimed) = start(&store, &mut claims).await;
        store.settle(claimed, done()).await.unwrap();
    }
    store.heartbeat().await.unwrap();
    assert_eq!(unsettle(&schema).await, 3);
    // A crash resets the statistics of the server.
    connect().await.batch_execute("SELECT pg_stat_reset_shared('bgwriter')").await.unwrap();
    eventually("all claims are released", async || {
        store.heartbeat().await.unwrap();
        store.stats().await.unwrap().pending == 3
    })
    .await;
    assert_eq!(store.settle(owned, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_with_keys_reissued_after_a_server_crash_are_taken_over() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = PostgresStore::open_with(proxy.config(), schema.options()).await.unwrap();
    let mut claims = attach(&store, 100);
    let mut claimed = Vec::new();
    for _ in 0..20 {
        claimed.push(start(&store, &mut claims).await.1);
    }
    for claimed in claimed {
        store.settle(claimed, done()).await.unwrap();
    }
    // A crash undoes the latest changes that were not on disk: here the last ten events and their keys.
    proxy.refuse();
    let forget = "DELETE FROM redrive.event WHERE key > 10;
                  UPDATE redrive.process SET oldest_event = 1;
                  SELECT setval('redrive.event_key_seq', 10)";
    connect().await.batch_execute(&schema.sql(forget)).await.unwrap();
    proxy.heal();
    eventually("the store reconnects", async || store.heartbeat().await.is_ok()).await;
    for _ in 0..2 {
        store.heartbeat().await.unwrap();
    }
    let (id, _lost) = start(&store, &mut claims).await;
    assert_eq!(number(&schema, "SELECT max(key) FROM redrive.event").await, 11);
    store.heartbeat().await.unwrap();
    drop(store);
    schema.is_unlocked().await;
    let again = open(schema.options()).await;
    let recovered = again.recover(now()).await.unwrap();
    assert_eq!(recovered.iter().map(|claim| claim.id).collect::<Vec<_>>(), [id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn election_and_takeover_work_after_the_clock_is_set_back() {
    let schema = Schema::new();
    let lease = Duration::from_secs(3);
    let (dead, lives) =
        (open(named(&schema, "dead", lease)).await, open(named(&schema, "lives", lease)).await);
    let (mut deads, mut claims) = (attach(&dead, 1), attach(&lives, 1));
    let (id, _lost) = start(&dead, &mut deads).await;
    let (_, kept) = start(&lives, &mut claims).await;
    dead.maintain(dead.clock().now(), None).await.unwrap();
    assert!(dead.leads().await.unwrap());
    drop(dead);
    // Stored times are in the future now.
    let back = "UPDATE redrive.process SET beats_at = beats_at + 3600000, started_at = started_at + 3600000;
                UPDATE redrive.leader SET since = since + 3600000, until = until + 3600000";
    connect().await.batch_execute(&schema.sql(back)).await.unwrap();
    let began = Instant::now();
    eventually("the event is taken over", async || {
        lives.heartbeat().await.unwrap();
        lives.maintain(lives.clock().now(), None).await.unwrap();
        lives.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    assert!(began.elapsed() >= lease / 3, "live processes renew their leases first");
    assert_eq!(lives.settle(kept, done()).await.unwrap(), Finished::Done { retried: false });
    assert_eq!(lives.stats().await.unwrap().processing, Stats::default().processing);
}

/// Starts a server with a slow WAL writer, so that a crash loses all asynchronous commits.
async fn server_with_slow_wal_writer() -> (redrive_servers::Postgres, Client) {
    let server = redrive_servers::Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let client = client_of(&server).await;
    client.batch_execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    (server, client)
}

async fn client_of(server: &redrive_servers::Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// Otherwise another process would get the same key, and both would own the same claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registrations_survive_a_server_crash_at_any_durability() {
    let (server, client) = server_with_slow_wal_writer().await;
    let relaxed = PostgresOptions { durability: Durability::Relaxed, ..PostgresOptions::default() };
    let store = PostgresStore::open(&server.url(), relaxed).await.unwrap();
    client.batch_execute("SELECT txid_current()").await.unwrap(); // flushes earlier commits
    store.heartbeat().await.unwrap();
    let key = "SELECT key FROM redrive.process";
    let before: i64 = client.query_one(key, &[]).await.unwrap().get(0);
    server.crash().unwrap();
    server.resume().unwrap();
    let found = client_of(&server).await.query(key, &[]).await.unwrap();
    assert_eq!(found.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [before]);
}
