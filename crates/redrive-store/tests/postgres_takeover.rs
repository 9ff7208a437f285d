//! Taking over from the dead, and from nobody else: however large the table is, however long it takes, and whatever the server
//! and its clock do meanwhile.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_store::postgres::Durability;
use redrive_store::{
    ClaimSink, Claimed, EventId, EventStatus, Finished, PostgresOptions, PostgresStore, Stats, Store,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::Client;

use crate::postgres_proxy::Proxy;
use crate::postgres_server::{Schema, connect, done, event, named, now, server};

const SHORT: Duration = Duration::from_millis(400);
const HOUR: Duration = Duration::from_secs(3600);

/// What does not wait for anybody takes a few milliseconds. The rest is for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn open(options: PostgresOptions) -> PostgresStore {
    PostgresStore::open(&server(), options).await.unwrap()
}

fn attach(store: &PostgresStore, room: usize) -> UnboundedReceiver<Claimed> {
    let (sink, claims) = ClaimSink::new(room);
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

/// Fails if it waits for anything.
async fn at_once<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_ONCE, work).await.unwrap_or_else(|_| panic!("{what} waits"))
}

async fn execute(schema: &Schema, statement: &str) -> u64 {
    connect().await.execute(&schema.sql(statement), &[]).await.unwrap()
}

async fn number(schema: &Schema, query: &str) -> i64 {
    connect().await.query_one(&schema.sql(query), &[]).await.unwrap().get(0)
}

/// Resolves when somebody waits for a lock while running a statement in this schema.
async fn is_held_up(schema: &Schema) {
    let observer = connect().await;
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND position($1 in query) > 0 AND pid <> pg_backend_pid()";
    eventually("it is held up", async || {
        observer.query_one(waiting, &[&schema.name]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_long_at_a_takeover_says_that_it_lives_and_leads_on() {
    let schema = Schema::new();
    let dead = open(named(&schema, "dead", SHORT)).await;
    let mut claims = attach(&dead, 10);
    let (id, _lost) = start(&dead, &mut claims).await;
    let heir = Arc::new(open(named(&schema, "heir", Duration::from_secs(3))).await);
    heir.heartbeat().await.unwrap();
    let mut client = connect().await;
    let holds_up = client.transaction().await.unwrap();
    holds_up.batch_execute(&schema.sql("SELECT 1 FROM redrive.event FOR UPDATE")).await.unwrap();
    drop(dead);
    let leading = tokio::spawn({
        let heir = Arc::clone(&heir);
        async move {
            loop {
                let pause = heir.maintain(now(), None).await.unwrap_or(SHORT);
                tokio::time::sleep(pause).await;
            }
        }
    });
    is_held_up(&schema).await;
    for _ in 0..5 {
        at_once("a sign of life", heir.heartbeat()).await.unwrap();
    }
    holds_up.commit().await.unwrap();
    eventually("it is taken over", async || heir.event(id).await.unwrap().status == EventStatus::Pending)
        .await;
    assert_eq!(heir.event(id).await.unwrap().retry_count, 1);
    leading.abort();
}

/// More than is looked at in one go, in the hands of a process that claims nothing older any more.
const MANY: i64 = 12_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_that_is_cut_off_goes_on_where_it_stopped_and_charges_nobody_twice() {
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
        PostgresOptions { statement_timeout: Duration::from_secs(2), ..named(&schema, "heir", SHORT) };
    let heir = open(options).await;
    // The last one is in somebody's way for now.
    let mut client = connect().await;
    let holds_up = client.transaction().await.unwrap();
    let last = schema.sql("SELECT 1 FROM redrive.event ORDER BY key DESC LIMIT 1 FOR UPDATE");
    holds_up.batch_execute(&last).await.unwrap();
    eventually("a part is taken over", async || {
        let _ = heir.maintain(now(), None).await;
        number(&schema, "SELECT count(*) FROM redrive.event WHERE status = 0").await > 0
    })
    .await;
    let left = number(&schema, "SELECT count(*) FROM redrive.event WHERE status = 1").await;
    assert!(left > 0, "the rest is still to be taken over");
    assert_eq!(
        number(&schema, "SELECT count(*) FROM redrive.process WHERE instance = 'silent'").await,
        1,
        "nobody is buried before everything is back"
    );
    let survey = heir.survey(HOUR).await.unwrap();
    let is_alive = survey.processes.iter().find(|process| process.instance == "silent").unwrap().is_alive;
    assert!(!is_alive && survey.cut_off == left.unsigned_abs(), "{survey:?}");
    // It wakes, and does not know yet.
    silent.attach(None);
    let mut claims = attach(&silent, 1);
    silent.append(vec![event()]).await.unwrap();
    assert!(claims.try_recv().is_err(), "nothing is handed to the dead");
    assert_eq!(silent.settle(late, done()).await.unwrap(), Finished::NotYet, "it is somebody else's");
    silent.heartbeat().await.unwrap();
    assert_eq!(silent.claim(now()).await.unwrap(), 1, "and it lives on under another key");

    holds_up.commit().await.unwrap();
    eventually("the rest is taken over", async || {
        silent.heartbeat().await.unwrap();
        heir.maintain(now(), None).await.unwrap();
        number(&schema, "SELECT count(*) FROM redrive.process WHERE instance = 'silent'").await == 1
    })
    .await;
    let charged = |count: &str| format!("SELECT count(*) FROM redrive.event WHERE retry_count {count}");
    assert_eq!(number(&schema, &charged("= 1")).await, MANY);
    assert_eq!(number(&schema, &charged("> 1")).await, 0, "nobody is charged twice");
    assert_eq!(number(&schema, "SELECT count(*) FROM redrive.attempt").await, MANY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_that_does_not_get_on_holds_up_no_other() {
    let schema = Schema::new();
    let (one, two) = (open(named(&schema, "one", SHORT)).await, open(named(&schema, "two", SHORT)).await);
    let (mut ones, mut twos) = (attach(&one, 1), attach(&two, 1));
    let (first, _lost) = start(&one, &mut ones).await;
    let (second, _also_lost) = start(&two, &mut twos).await;
    drop((one, two));
    let heir = open(named(&schema, "heir", SHORT)).await;
    let mut client = connect().await;
    let holds_up = client.transaction().await.unwrap();
    let lock = format!("SELECT 1 FROM redrive.event WHERE id = '{first}' FOR UPDATE");
    holds_up.batch_execute(&schema.sql(&lock)).await.unwrap();
    let taken_over = async |id: EventId| {
        let _ = heir.maintain(now(), None).await;
        heir.event(id).await.unwrap().status == EventStatus::Pending
    };
    eventually("the second one is taken over", async || taken_over(second).await).await;
    assert_eq!(heir.event(first).await.unwrap().status, EventStatus::Processing);
    holds_up.commit().await.unwrap();
    eventually("the first one as well", async || taken_over(first).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_after_an_outage_declares_nobody_dead_who_lives() {
    let schema = Schema::new();
    let lives = open(named(&schema, "lives", Duration::from_secs(15))).await;
    let mut claims = attach(&lives, 1);
    let (_, claimed) = start(&lives, &mut claims).await;
    // As if the server had been away: all leases have run out, and nobody could do anything about it.
    schema.move_time(HOUR).await;
    let starts = open(named(&schema, "starts", Duration::from_secs(15))).await;
    assert!(starts.recover(now()).await.unwrap().is_empty());
    starts.maintain(starts.clock().now(), None).await.unwrap();
    lives.heartbeat().await.unwrap();
    assert_eq!(lives.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_when_all_others_are_dead_takes_over_within_seconds() {
    let schema = Schema::new();
    let dead = open(named(&schema, "dead", Duration::from_secs(6))).await;
    let mut claims = attach(&dead, 1);
    let (id, _lost) = start(&dead, &mut claims).await;
    drop(dead);
    schema.move_time(HOUR).await;
    let left = open(named(&schema, "left", Duration::from_secs(6))).await;
    let began = Instant::now();
    assert!(left.recover(now()).await.unwrap().is_empty(), "it waits a little for who lives");
    eventually("it is taken over", async || {
        left.maintain(left.clock().now(), None).await.unwrap();
        left.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(2 + 10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_chore_of_the_leader() {
    let schema = Schema::new();
    let (leader, other) = (Arc::new(open(schema.options()).await), open(schema.options()).await);
    let mut claims = attach(&leader, 1);
    let (_, claimed) = start(&leader, &mut claims).await;
    leader.settle(claimed, done()).await.unwrap();
    leader.maintain(now(), None).await.unwrap();
    let mut client = connect().await;
    let holds_up = client.transaction().await.unwrap();
    holds_up.batch_execute(&schema.sql("SELECT 1 FROM redrive.event FOR UPDATE")).await.unwrap();
    let later = now() + Duration::from_secs(120);
    let purging = tokio::spawn({
        let leader = Arc::clone(&leader);
        async move { leader.maintain(later, Some(Duration::ZERO)).await }
    });
    is_held_up(&schema).await;
    // Longer than the leader's lease.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        at_once("an election", other.maintain(now(), None)).await.unwrap();
        at_once("a sign of life", other.heartbeat()).await.unwrap();
        at_once("the leader's sign of life", leader.heartbeat()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(leader.leads().await.unwrap() && !other.leads().await.unwrap(), "it leads on");
    holds_up.commit().await.unwrap();
    purging.await.unwrap().unwrap();
    assert_eq!(leader.stats().await.unwrap().done, 0);
}

/// What a crash of the server leaves behind if it had not written the last moments down.
async fn unsettle(schema: &Schema) -> u64 {
    execute(schema, "UPDATE redrive.event SET status = 1, due_at = created_at WHERE status = 3").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_a_crash_of_the_server_is_noticed_though_no_connection_is_lost() {
    let schema = Schema::new();
    let store = open(PostgresOptions { poll_only: true, ..schema.options() }).await;
    let mut claims = attach(&store, 10);
    let (_, held) = start(&store, &mut claims).await;
    for _ in 0..3 {
        let (_, claimed) = start(&store, &mut claims).await;
        store.settle(claimed, done()).await.unwrap();
    }
    store.heartbeat().await.unwrap();
    assert_eq!(unsettle(&schema).await, 3);
    // A server that has crashed has forgotten what it has counted.
    connect().await.batch_execute("SELECT pg_stat_reset_shared('bgwriter')").await.unwrap();
    eventually("all are given back", async || {
        store.heartbeat().await.unwrap();
        store.stats().await.unwrap().pending == 3
    })
    .await;
    assert_eq!(store.settle(held, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_under_keys_that_a_crashed_server_gives_out_again_is_taken_over() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = PostgresStore::open_with(proxy.config(), schema.options()).await.unwrap();
    let mut claims = attach(&store, 100);
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(start(&store, &mut claims).await.1);
    }
    for claimed in held {
        store.settle(claimed, done()).await.unwrap();
    }
    // A crash takes a part of all that was not on disk, the last first: here the last ten events and their keys.
    proxy.refuse();
    let forget = "DELETE FROM redrive.event WHERE key > 10;
                  UPDATE redrive.process SET oldest_event = 1;
                  SELECT setval('redrive.event_key_seq', 10)";
    connect().await.batch_execute(&schema.sql(forget)).await.unwrap();
    proxy.heal();
    eventually("the server is found again", async || store.heartbeat().await.is_ok()).await;
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
    assert_eq!(recovered.iter().map(|unit| unit.id).collect::<Vec<_>>(), [id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_whose_clock_is_set_back_has_a_leader_and_takes_over_all_the_same() {
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
    // All that was written down is from the future now.
    let back = "UPDATE redrive.process SET beats_at = beats_at + 3600000, started_at = started_at + 3600000;
                UPDATE redrive.leader SET since = since + 3600000, until = until + 3600000";
    connect().await.batch_execute(&schema.sql(back)).await.unwrap();
    let began = Instant::now();
    eventually("it is taken over", async || {
        lives.heartbeat().await.unwrap();
        lives.maintain(lives.clock().now(), None).await.unwrap();
        lives.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    assert!(began.elapsed() >= lease / 3, "who lives says so first");
    assert_eq!(lives.settle(kept, done()).await.unwrap(), Finished::Done { retried: false });
    assert_eq!(lives.stats().await.unwrap().processing, Stats::default().processing);
}

/// A server that writes nothing down by itself for some time, so that a crash takes all with it that need not be on disk.
async fn forgetful_server() -> (redrive_servers::Postgres, Client) {
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

/// Its key would be given to another, and both would think that what the other holds is their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_knows_whom_it_knew_whatever_the_durability() {
    let (server, client) = forgetful_server().await;
    let relaxed = PostgresOptions { durability: Durability::Relaxed, ..PostgresOptions::default() };
    let store = PostgresStore::open(&server.url(), relaxed).await.unwrap();
    client.batch_execute("SELECT txid_current()").await.unwrap(); // all that came before is on disk
    store.heartbeat().await.unwrap();
    let key = "SELECT key FROM redrive.process";
    let before: i64 = client.query_one(key, &[]).await.unwrap().get(0);
    server.crash().unwrap();
    server.resume().unwrap();
    let found = client_of(&server).await.query(key, &[]).await.unwrap();
    assert_eq!(found.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [before]);
}
