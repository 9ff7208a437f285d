//! Leader election, and the tasks of the leader.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::idempotency::{Begin, Fingerprint, IdempotencyKey, IdempotencyStore, OwnerToken};
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, Finished, NewEvent, PostgresOptions, PostgresStore, Routing, Store, SubscriptionName,
};

use crate::postgres_server::{Schema, connect, done_at, event_at, named, server};

/// A new leader takes over within the lease of three seconds and the election interval of one second. Two seconds more for
/// a busy machine.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(4 + 2);

async fn open(options: PostgresOptions) -> PostgresStore {
    PostgresStore::open(&server(), options).await.unwrap()
}

async fn maintain(store: &PostgresStore, retention: Option<Duration>) -> Duration {
    store.maintain(store.clock().now(), retention).await.unwrap()
}

/// Publishes an event and handles it.
async fn handle(store: &PostgresStore) {
    let (sink, mut claims) = ClaimSink::new(1);
    store.attach(Some(sink));
    store.append(vec![event_at(store.clock().now())]).await.unwrap();
    let claimed = claims.try_recv().unwrap();
    store.settle(claimed, done_at(store.clock().now())).await.unwrap();
    store.attach(None);
}

/// Runs the maintenance of all stores until one of them leads. Returns its index, and how long it took.
async fn leader_of(stores: &[PostgresStore]) -> (usize, Duration) {
    let began = Instant::now();
    loop {
        let mut pause = TAKEOVER_TIMEOUT;
        for store in stores {
            pause = pause.min(maintain(store, None).await);
        }
        let mut leaders = Vec::new();
        for (number, store) in stores.iter().enumerate() {
            if store.leads().await.unwrap() {
                leaders.push(number);
            }
        }
        match leaders[..] {
            [leader] => return (leader, began.elapsed()),
            [] => assert!(began.elapsed() < TAKEOVER_TIMEOUT, "no process leads"),
            _ => panic!("{leaders:?} lead at once"),
        }
        tokio::time::sleep(pause).await;
    }
}

async fn one_leads_until_it_ends(poll_only: bool) {
    let schema = Schema::new();
    let options = || PostgresOptions { poll_only, write_connections: 1, ..schema.options() };
    let mut stores = vec![open(options()).await, open(options()).await, open(options()).await];
    let (first, _) = leader_of(&stores).await;
    for _ in 0..3 {
        assert_eq!(leader_of(&stores).await.0, first, "the leader stays the same");
    }
    // The leader dies without resigning.
    drop(stores.remove(first));
    let (second, waited) = leader_of(&stores).await;
    assert!(waited < TAKEOVER_TIMEOUT, "{waited:?}");
    // The leader is closed: the next one does not wait for the lease.
    let leaving = stores.remove(second);
    leaving.close().await.unwrap();
    let (_, waited) = leader_of(&stores).await;
    assert!(waited < Duration::from_secs(2), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_leads_soon_after_the_leader_ends() {
    one_leads_until_it_ends(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_election_works_behind_a_pooler() {
    one_leads_until_it_ends(true).await;
}

/// Waits until a session is blocked by a table lock in this schema.
async fn wait_for_blocked_session(observer: &tokio_postgres::Client, schema: &Schema) {
    let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                   JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND NOT l.granted";
    let began = Instant::now();
    while observer.query_one(waiting, &[&schema.name]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "no session is blocked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_keeps_its_lease_during_long_tasks() {
    let schema = Schema::new();
    let (leader, other) = (Arc::new(open(schema.options()).await), open(schema.options()).await);
    let mut client = connect().await;
    maintain(&leader, None).await;
    let blocking = client.transaction().await.unwrap();
    blocking
        .batch_execute(&schema.sql("LOCK TABLE redrive.delivery IN ACCESS EXCLUSIVE MODE"))
        .await
        .unwrap();
    let later = leader.clock().now() + Duration::from_secs(120);
    let counting = tokio::spawn({
        let leader = Arc::clone(&leader);
        async move { leader.maintain(later, None).await }
    });
    wait_for_blocked_session(&connect().await, &schema).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        maintain(&other, None).await;
        assert!(leader.leads().await.unwrap() && !other.leads().await.unwrap());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    blocking.commit().await.unwrap();
    counting.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_unregistered_processes_are_taken_over() {
    let schema = Schema::new();
    let (leader, other) = (open(schema.options()).await, open(schema.options()).await);
    maintain(&leader, None).await;
    let (sink, mut claims) = ClaimSink::new(2);
    other.attach(Some(sink));
    let names = vec![SubscriptionName::new("audit").unwrap()];
    let owed = NewEvent { to: Routing::Each(names), ..event_at(other.clock().now()) };
    other.append(vec![event_at(other.clock().now()), owed]).await.unwrap();
    let _claimed = [claims.try_recv().unwrap(), claims.try_recv().unwrap()];
    let forget = schema.sql("DELETE FROM redrive.process");
    assert_eq!(
        connect().await.execute(&forget, &[]).await.unwrap(),
        1,
        "only the other process is registered"
    );
    let later = leader.clock().now() + Duration::from_secs(120);
    leader.maintain(later, None).await.unwrap();
    let (sink, mut claims) = ClaimSink::new(10);
    leader.attach(Some(sink));
    assert_eq!(leader.claim(later).await.unwrap(), 2);
    for claimed in [claims.try_recv().unwrap(), claims.try_recv().unwrap()] {
        assert_eq!(claimed.attempt, 2, "the attempt is charged");
        assert!(matches!(leader.settle(claimed, done_at(later)).await.unwrap(), Finished::Done { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_lease_changes_nothing() {
    let schema = Schema::new();
    let old = Arc::new(open(schema.options()).await);
    maintain(&old, None).await;
    handle(&old).await;
    // Blocks the leader between its election and its change.
    let mut client = connect().await;
    let blocking = client.transaction().await.unwrap();
    blocking.batch_execute(&schema.sql("LOCK TABLE redrive.event IN ACCESS EXCLUSIVE MODE")).await.unwrap();
    let purging = tokio::spawn({
        let old = Arc::clone(&old);
        // The next cleanup is due at this time.
        let later = old.clock().now() + Duration::from_secs(120);
        async move { old.maintain(later, Some(Duration::ZERO)).await }
    });
    let observer = connect().await;
    wait_for_blocked_session(&observer, &schema).await;
    assert!(old.leads().await.unwrap());
    // Another leader is elected in the moment in which the old one continues.
    let elected =
        schema.sql("UPDATE redrive.leader SET boot = gen_random_uuid(), until = redrive.now_ms() + 3000");
    blocking.execute(&elected, &[]).await.unwrap();
    blocking.commit().await.unwrap();
    assert!(!old.leads().await.unwrap());
    purging.await.unwrap().unwrap();
    assert_eq!(old.stats().await.unwrap().done, 1, "the event is not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_the_leader_declares_no_live_process_dead() {
    let schema = Schema::new();
    let lease = Duration::from_secs(6);
    let (one, two) = (open(named(&schema, "one", lease)).await, open(named(&schema, "two", lease)).await);
    let (sink, mut claims) = ClaimSink::new(1);
    two.attach(Some(sink));
    two.append(vec![event_at(two.clock().now())]).await.unwrap();
    let claimed = claims.try_recv().unwrap();
    maintain(&one, None).await;
    tokio::time::sleep(lease / 3).await;
    maintain(&one, None).await;
    // Like an outage of the server: all leases have expired.
    schema.move_time(Duration::from_secs(3600)).await;
    maintain(&one, None).await;
    assert!(one.leads().await.unwrap());
    two.heartbeat().await.unwrap();
    let began = Instant::now();
    while began.elapsed() < lease / 2 {
        maintain(&one, None).await;
        two.heartbeat().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let settled = two.settle(claimed, done_at(two.clock().now())).await.unwrap();
    assert_eq!(settled, Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_leader_cleans_up_and_collects_statistics() {
    let schema = Schema::new();
    let (leader, other) = (open(schema.options()).await, open(schema.options()).await);
    assert_eq!(other.last_stats().await.unwrap(), None);
    let key = IdempotencyKey::new("charge/7").unwrap();
    let owner = OwnerToken::new();
    let taken = leader.begin(&key, Fingerprint::default(), owner, Duration::from_secs(10)).await.unwrap();
    assert_eq!(taken, Begin::Acquired);
    leader.complete(&key, owner, "1", None, Duration::ZERO).await.unwrap();
    for _ in 0..3 {
        handle(&leader).await;
    }
    maintain(&leader, Some(Duration::from_secs(3600))).await;
    maintain(&other, Some(Duration::ZERO)).await;
    let (at, stats) = other.last_stats().await.unwrap().unwrap();
    assert_eq!((stats.done, stats.pending), (3, 0));
    assert!(at <= other.clock().now() + Duration::from_secs(1));
    let keys = schema.sql("SELECT count(*) FROM redrive.idempotency");
    assert_eq!(connect().await.query_one(&keys, &[]).await.unwrap().get::<_, i64>(0), 0);
    // Another process deletes nothing, and the leader only once in a while.
    maintain(&leader, Some(Duration::ZERO)).await;
    assert_eq!(leader.stats().await.unwrap().done, 3);
    let later = leader.clock().now() + Duration::from_secs(61);
    leader.maintain(later, Some(Duration::ZERO)).await.unwrap();
    assert_eq!(leader.stats().await.unwrap().done, 0);
    assert_eq!(other.last_stats().await.unwrap().unwrap().1.done, 0);
}

/// An open transaction keeps deleted rows from being vacuumed: a search from the beginning would scan them every time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_continues_where_it_stopped() {
    const EVENTS: i64 = 10_000;
    let schema = Schema::new();
    let store = open(named(&schema, "one", Duration::from_secs(60))).await;
    let client = connect().await;
    let insert = format!(
        "INSERT INTO redrive.event (id, created_at, updated_at, status, type)
         SELECT gen_random_uuid(), 1, 1, 3, 'order.created' FROM generate_series(1, {EVENTS});
         ANALYZE redrive.event"
    );
    client.batch_execute(&schema.sql(&insert)).await.unwrap();
    let idle_transaction = connect().await;
    idle_transaction
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()")
        .await
        .unwrap();
    let began = Instant::now();
    while store.stats().await.unwrap().done > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", store.stats().await);
        maintain(&store, Some(Duration::from_secs(1))).await;
    }
    store.close().await.unwrap();
    // The server updates its statistics with a delay: waits until they no longer change.
    let query = schema.sql(
        "SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelid = 'redrive.event_pkey'::regclass",
    );
    let (mut read, mut same) = (0, 0);
    while same < 10 || read == 0 {
        assert!(began.elapsed() < Duration::from_secs(90), "{read} entries were read");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now: i64 = client.query_one(&query, &[]).await.unwrap().get(0);
        same = if now == read { same + 1 } else { 0 };
        read = now;
    }
    // One read to find each event, one to delete it, and a margin.
    assert!(read < 3 * EVENTS, "{read} entries of the index were read for {EVENTS} events");
}
