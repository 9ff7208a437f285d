//! Tests of a store that several processes share: takeover, lost answers, notifications, schemas.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::postgres::{Durability, append_in};
use redrive_store::traits::*;
use redrive_store::{
    Appended, ClaimSink, Claimed, EventId, EventStatus, FailedAttempt, Finished, NewEvent, PostgresOptions,
    PostgresStore, Redrive, Routing, Settlement, Stats, Store, StoreError, SubscriptionName, Verdict,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::postgres_proxy::{Cut, Proxy};
use crate::postgres_server::{Schema, connect, done, event, named, now, server, settlement};

const SHORT: Duration = Duration::from_millis(400);

fn dead() -> Settlement {
    let failure = FailedAttempt {
        subscription: SubscriptionName::new("shipping").unwrap(),
        started_at: now(),
        duration_ms: 1,
        class: FailureClass::Permanent,
        delay_ms: 0,
        error: "no".into(),
        record: None,
        detail: None,
    };
    Settlement { failure: Some(failure), ..settlement(Verdict::Dead(DeadReason::Permanent)) }
}

async fn open(options: PostgresOptions) -> PostgresStore {
    PostgresStore::open(&server(), options).await.unwrap()
}

fn attach(store: &PostgresStore, slots: usize) -> (ClaimSink, UnboundedReceiver<Claimed>) {
    let (sink, claims) = ClaimSink::new(slots);
    store.attach(Some(sink.clone()));
    (sink, claims)
}

/// Publishes one event that is running at once.
async fn start(store: &PostgresStore, claims: &mut UnboundedReceiver<Claimed>) -> (EventId, Claimed) {
    let new = event();
    let id = new.id;
    assert_eq!(store.append(vec![new]).await.unwrap(), [Appended::New]);
    (id, claims.try_recv().unwrap())
}

/// Polls until a condition holds, or fails after 20 s.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn counts(store: &PostgresStore) -> Stats {
    Stats { file_bytes: 0, wal_bytes: 0, ..store.stats().await.unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_process_with_an_expired_lease_are_taken_over_and_fenced() {
    let schema = Schema::new();
    let silent = open(named(&schema, "a", SHORT)).await;
    let (_sink, mut claims) = attach(&silent, 10);
    let (id, late) = start(&silent, &mut claims).await;
    let successor = open(named(&schema, "b", SHORT)).await;
    eventually("the lease expires", async || {
        successor.maintain(now(), None).await.unwrap();
        successor.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    let shown = successor.event(id).await.unwrap();
    assert_eq!(
        (shown.retry_count, shown.attempts[0].class),
        (1, Some(FailureClass::Crashed)),
        "the attempt is charged"
    );

    let (_sink, mut successors) = attach(&successor, 10);
    assert_eq!(successor.claim(now()).await.unwrap(), 1);
    let claimed = successors.try_recv().unwrap();
    assert_eq!(claimed.attempt, 2);
    assert_eq!(silent.settle(late, dead()).await.unwrap(), Finished::Fenced, "the claim is fenced");
    assert_eq!(successor.event(id).await.unwrap().status, EventStatus::Processing);
    assert_eq!(successor.settle(claimed, done()).await.unwrap(), Finished::Done { retried: true });

    // The process registers again, under another key.
    silent.heartbeat().await.unwrap();
    let (_, claimed) = start(&silent, &mut claims).await;
    assert_eq!(silent.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    assert_eq!(counts(&successor).await, Stats { done: 2, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_declared_dead_strands_nothing_when_it_publishes_and_claims() {
    let schema = Schema::new();
    let silent = open(named(&schema, "a", SHORT)).await;
    let (_sink, mut claims) = attach(&silent, 10);
    let (_, first) = start(&silent, &mut claims).await;
    let successor = open(named(&schema, "b", SHORT)).await;
    let taken_over = async || {
        successor.maintain(now(), None).await.unwrap();
        counts(&successor).await.pending == 1
    };
    eventually("the lease expires", taken_over).await;
    drop(first);
    // The process does not know yet that it was declared dead.
    silent.append(vec![event()]).await.unwrap();
    assert!(claims.try_recv().is_err(), "a process declared dead gets no claims");
    assert_eq!(
        counts(&successor).await,
        Stats { pending: 2, ..Stats::default() },
        "the event waits for a live process"
    );
    assert_eq!(silent.claim(now()).await.unwrap(), 2, "the claim notices it and registers the process again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_process_recovers_its_own_claims_at_once_and_no_others() {
    let schema = Schema::new();
    let hour = Duration::from_secs(3600);
    let (one, two) = (open(named(&schema, "one", hour)).await, open(named(&schema, "two", hour)).await);
    let ((_one_sink, mut ones), (_two_sink, mut twos)) = (attach(&one, 10), attach(&two, 10));
    let (id, _lost) = start(&one, &mut ones).await;
    let (_, kept) = start(&two, &mut twos).await;
    let same = open(named(&schema, "two", hour)).await;
    assert!(same.recover(now()).await.unwrap().is_empty(), "both processes are alive");
    drop(one);
    assert!(same.recover(now()).await.unwrap().is_empty(), "another instance waits for the lease");
    let again = open(named(&schema, "one", hour)).await;
    let mut recovered = Vec::new();
    eventually("the server releases the lock with the connection", async || {
        recovered = again.recover(now()).await.unwrap();
        !recovered.is_empty()
    })
    .await;
    assert_eq!(recovered.iter().map(|claim| claim.id).collect::<Vec<_>>(), [id]);
    assert_eq!(two.settle(kept, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_closed_store_can_be_recovered_at_once() {
    let schema = Schema::new();
    let hour = Duration::from_secs(3600);
    let one = open(named(&schema, "one", hour)).await;
    let (_sink, mut claims) = attach(&one, 10);
    let (id, _unsettled) = start(&one, &mut claims).await;
    one.close().await.unwrap();
    let other = open(named(&schema, "other", hour)).await;
    assert_eq!(other.recover(now()).await.unwrap()[0].id, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_from_before_a_redrive_cannot_settle_the_event() {
    let schema = Schema::new();
    let silent = open(named(&schema, "a", SHORT)).await;
    let (_sink, mut claims) = attach(&silent, 10);
    let (id, late) = start(&silent, &mut claims).await;
    let successor = open(named(&schema, "b", SHORT)).await;
    let (_sink, mut successors) = attach(&successor, 10);
    eventually("the lease expires", async || {
        successor.maintain(now(), None).await.unwrap();
        successor.claim(now()).await.unwrap() == 1
    })
    .await;
    successor.settle(successors.try_recv().unwrap(), dead()).await.unwrap();
    successor.redrive(id, Redrive { at: now(), payload: None }).await.unwrap();
    // The redrive has reset the attempts.
    assert_eq!(successor.claim(now()).await.unwrap(), 1);
    let claimed = successors.try_recv().unwrap();
    assert_eq!(claimed.attempt, late.attempt);
    assert_eq!(silent.settle(late, done()).await.unwrap(), Finished::Fenced);
    assert_eq!(successor.event(id).await.unwrap().status, EventStatus::Processing);
    assert_eq!(successor.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_work_and_nothing_is_claimed_twice() {
    let schema = Schema::new();
    let (one, two) = (open(schema.options()).await, open(schema.options()).await);
    one.append((0..600).map(|_| event()).collect()).await.unwrap();
    let ((_one_sink, mut ones), (_two_sink, mut twos)) = (attach(&one, 1000), attach(&two, 1000));
    let later = Timestamp::from_millis(now().as_millis() + 1000);
    let mut total = 0;
    loop {
        let (a, b) = tokio::join!(one.claim(later), two.claim(later));
        let claimed = a.unwrap() + b.unwrap();
        total += claimed;
        if claimed == 0 {
            break;
        }
    }
    assert_eq!(total, 600);
    let mut seen = std::collections::HashSet::new();
    for (store, claims) in [(&one, &mut ones), (&two, &mut twos)] {
        while let Ok(claimed) = claims.try_recv() {
            assert!(seen.insert(claimed.event.id), "once");
            assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
        }
    }
    assert_eq!(seen.len(), 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_two_deliveries_settled_together_finishes_the_event() {
    let schema = Schema::new();
    let (one, two) = (open(schema.options()).await, open(schema.options()).await);
    let ((_one_sink, mut ones), (_two_sink, mut twos)) = (attach(&one, 1), attach(&two, 1));
    for _ in 0..40 {
        let names = ["audit", "billing"].map(|name| SubscriptionName::new(name).unwrap());
        one.append(vec![NewEvent { to: Routing::Each(names.into()), ..event() }]).await.unwrap();
        eventually("the other process claims the delivery without a slot", async || {
            two.claim(now()).await.unwrap() == 1
        })
        .await;
        let (first, second) = (ones.try_recv().unwrap(), twos.try_recv().unwrap());
        let (a, b) = tokio::join!(one.settle(first, done()), two.settle(second, done()));
        let mut ends = [a.unwrap(), b.unwrap()];
        ends.sort_by_key(|end| *end == Finished::NotYet);
        assert_eq!(ends, [Finished::Done { retried: false }, Finished::NotYet]);
    }
    assert_eq!(counts(&one).await, Stats { done: 40, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_several_statements_shares_its_transaction_with_no_settlement() {
    let schema = Schema::new();
    let store = Arc::new(open(PostgresOptions { write_connections: 1, ..schema.options() }).await);
    let (_sink, mut claims) = attach(&store, 100);
    let mut claimed = Vec::new();
    for _ in 0..30 {
        claimed.push(start(&store, &mut claims).await.1);
    }
    store.attach(None);
    // More than fits into one statement, during settlements.
    let heavy: Arc<str> = format!("\"{}\"", "x".repeat(1_000_000)).into();
    let batch: Vec<NewEvent> = (0..40).map(|_| NewEvent { payload: Arc::clone(&heavy), ..event() }).collect();
    // The lock makes all of them wait.
    let mut client = connect().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute(&schema.sql("LOCK TABLE redrive.event IN EXCLUSIVE MODE")).await.unwrap();
    let mut settling = JoinSet::new();
    for claimed in claimed {
        let store = Arc::clone(&store);
        settling.spawn(async move { store.settle(claimed, done()).await });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let storing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.append(batch).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    lock.commit().await.unwrap();
    let (stored, ends) = (storing.await.unwrap(), settling.join_all().await);
    assert_eq!(stored.unwrap(), vec![Appended::New; 40]);
    assert!(ends.iter().all(|end| matches!(end, Ok(Finished::Done { .. }))), "{ends:?}");
    let shared = schema.sql(
        "SELECT count(*) FROM redrive.event s JOIN redrive.event b ON b.xmin = s.xmin WHERE s.status = 3 AND b.status = 0",
    );
    let shared: i64 = connect().await.query_one(&shared, &[]).await.unwrap().get(0);
    assert_eq!(shared, 0, "no settlement is in the transaction of the batch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_processes_are_notified_of_new_work() {
    let schema = Schema::new();
    let options = PostgresOptions { poll_interval: Duration::from_secs(3600), ..schema.options() };
    let (one, two) = (open(options.clone()).await, open(options).await);
    let due = two.due_hint();
    let publishing = async {
        // The other process may not listen yet.
        loop {
            one.append(vec![event()]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = due.changed() => {}
        () = publishing => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("no notification arrived"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_opens_migrate_a_new_schema_once() {
    let schema = Schema::new();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let options = schema.options();
        tasks.spawn(async move { PostgresStore::open(&server(), options).await.map(drop) });
    }
    for opened in tasks.join_all().await {
        opened.unwrap();
    }
    let query = schema.sql("SELECT version FROM redrive.migration ORDER BY version");
    let versions = connect().await.query(&query, &[]).await.unwrap();
    let versions: Vec<i32> = versions.iter().map(|row| row.get(0)).collect();
    assert_eq!(versions, (1..).take(versions.len()).collect::<Vec<_>>(), "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_and_a_foreign_one_are_refused() {
    let schema = Schema::new();
    drop(open(schema.options()).await);
    let client = connect().await;
    client.batch_execute(&schema.sql("INSERT INTO redrive.migration (version) VALUES (99)")).await.unwrap();
    let error = PostgresStore::open(&server(), schema.options()).await.unwrap_err();
    assert!(matches!(&error, StoreError::NewerSchema { found: 99, .. }), "{error}");

    let foreign = Schema::new();
    let occupy = format!("CREATE SCHEMA {0}; CREATE TABLE {0}.event (mine integer)", foreign.name);
    client.batch_execute(&occupy).await.unwrap();
    let error = PostgresStore::open(&server(), foreign.options()).await.unwrap_err();
    assert!(matches!(&error, StoreError::ForeignSchema { .. }), "{error}");

    let odd = PostgresOptions { schema: "a\"; DROP SCHEMA public; --".into(), ..PostgresOptions::default() };
    let error = PostgresStore::open(&server(), odd).await.unwrap_err();
    assert!(matches!(&error, StoreError::SchemaName { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_can_name_the_schema() {
    let schema = Schema::new();
    let address = |name: &str| {
        let joint = if server().contains('?') { '&' } else { '?' };
        format!("{}{joint}schema={name}", server())
    };
    let by_address = PostgresStore::open(&address(&schema.name), PostgresOptions::default()).await.unwrap();
    by_address.append(vec![event()]).await.unwrap();
    assert_eq!(counts(&open(schema.options()).await).await.pending, 1, "both stores use the same schema");
    for (bad, read) in [
        ("", ""),
        ("Orders", "Orders"),
        ("pg_catalog", "pg_catalog"),
        ("a%22b", "a\"b"),
        ("a;DROP", "a;DROP"),
    ] {
        let error = PostgresStore::open(&address(bad), schema.options()).await.unwrap_err();
        assert!(matches!(&error, StoreError::SchemaName { name } if name == read), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_can_lose_commits_is_refused_unless_durability_is_relaxed() {
    let schema = Schema::new();
    let mut config: tokio_postgres::Config = server().parse().unwrap();
    config.options("-c synchronous_commit=off");
    let error = PostgresStore::open_with(config.clone(), schema.options()).await.unwrap_err();
    assert!(error.to_string().contains("set synchronous_commit = on"), "{error}");
    let relaxed = PostgresOptions { durability: Durability::Relaxed, ..schema.options() };
    PostgresStore::open_with(config, relaxed).await.unwrap();
}

/// The client configuration of the server, changed.
fn config_with(
    change: impl FnOnce(&mut tokio_postgres::Config) -> &mut tokio_postgres::Config,
) -> tokio_postgres::Config {
    let mut config: tokio_postgres::Config = server().parse().unwrap();
    change(&mut config).clone()
}

async fn through(proxy: &Proxy, options: PostgresOptions) -> PostgresStore {
    PostgresStore::open_with(proxy.config(), options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_with_a_lost_answer_stores_one_event() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { write_connections: 1, ..schema.options() };
    let store = through(&proxy, options).await;
    let (_sink, mut claims) = attach(&store, 100);
    let (_, first) = start(&store, &mut claims).await;
    for round in 0..20 {
        // Events that run at once, and events that wait.
        let due_at =
            if round % 2 == 0 { now() } else { Timestamp::from_millis(now().as_millis() + 1_000_000) };
        let new = NewEvent { due_at, created_at: due_at.min(now()), ..event() };
        let id = new.id;
        proxy.cut(if round % 4 < 2 { Cut::Answer } else { Cut::Request });
        assert_eq!(store.append(vec![new.clone()]).await.unwrap(), [Appended::New], "round {round}");
        assert_eq!(store.append(vec![new]).await.unwrap(), [Appended::Duplicate], "round {round}");
        assert_eq!(store.event(id).await.unwrap().id, id);
    }
    let handed_over: Vec<Claimed> = std::iter::from_fn(|| claims.try_recv().ok()).collect();
    assert_eq!(handed_over.len(), 10, "every running event has a claim");
    for claimed in handed_over {
        assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    }
    store.settle(first, done()).await.unwrap();
    assert_eq!(counts(&store).await, Stats { done: 11, pending: 10, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_with_a_lost_answer_reports_its_outcome() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, PostgresOptions { write_connections: 1, ..schema.options() }).await;
    let (sink, mut claims) = attach(&store, 100);
    for round in 0..6 {
        let (id, claimed) = start(&store, &mut claims).await;
        proxy.cut(if round % 2 == 0 { Cut::Answer } else { Cut::Request });
        let (end, expected) = match round % 3 {
            0 => (done(), Finished::Done { retried: false }),
            1 => (dead(), Finished::Dead { retried: false }),
            _ => (settlement(Verdict::Retry(Timestamp::from_millis(i64::MAX / 2).into())), Finished::NotYet),
        };
        assert_eq!(store.settle(claimed, end).await.unwrap(), expected, "round {round}");
        let letters = store.dead_letter(id).await.map_or(0, |letters| letters.len());
        assert_eq!(letters, usize::from(round % 3 == 1), "once");
    }
    assert_eq!(sink.free_slots(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_with_a_lost_answer_is_released() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    store.append((0..5).map(|_| event()).collect()).await.unwrap();
    let (sink, mut claims) = attach(&store, 1);
    assert_eq!(store.claim(now()).await.unwrap(), 1, "all statements are prepared");
    let owned = claims.try_recv().unwrap();
    let (sink_two, mut claims_two) = attach(&store, 100);
    proxy.cut(Cut::Answer);
    assert!(store.claim(now()).await.is_err());
    proxy.heal();
    assert_eq!(sink_two.free_slots(), 100, "no slot is lost");
    eventually("the lost claims are released", async || {
        store.heartbeat().await.unwrap();
        counts(&store).await.pending == 4
    })
    .await;
    assert_eq!(store.claim(now()).await.unwrap(), 4);
    let mut again: Vec<Claimed> = std::iter::from_fn(|| claims_two.try_recv().ok()).collect();
    assert!(again.iter().all(|claimed| claimed.attempt == 1), "no attempt was charged");
    again.push(owned);
    for claimed in again {
        assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    }
    assert_eq!(sink.free_slots(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_after_a_lost_answer_leaves_no_claims_behind() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    // The settled claim has a newer key than the lost ones, so the process seems to own only newer keys.
    store.append((0..4).map(|_| event()).collect()).await.unwrap();
    let (_one, mut claims) = attach(&store, 1);
    assert_eq!(store.claim(now()).await.unwrap(), 1, "all statements are prepared");
    let first = claims.try_recv().unwrap();
    store.settle(first, done()).await.unwrap();
    let (_sink, _claims) = attach(&store, 100);
    proxy.cut(Cut::Answer);
    assert!(store.claim(now()).await.is_err());
    proxy.heal();
    store.close().await.unwrap();
    let other = through(&proxy, schema.options()).await;
    other.recover(now()).await.unwrap();
    let (_sink, mut claims) = attach(&other, 100);
    assert_eq!(other.claim(now()).await.unwrap(), 3);
    for claimed in std::iter::from_fn(|| claims.try_recv().ok()).collect::<Vec<_>>() {
        assert_eq!(claimed.attempt, 1, "no attempt was charged");
        other.settle(claimed, done()).await.unwrap();
    }
    assert_eq!(counts(&other).await, Stats { done: 4, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_settlement_the_server_lost_is_delivered_again() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    let (_sink, mut claims) = attach(&store, 10);
    let (_, owned) = start(&store, &mut claims).await;
    let (id, claimed) = start(&store, &mut claims).await;
    assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    proxy.refuse();
    assert_eq!(unsettle(&schema).await, 1);
    proxy.heal();
    eventually("the claim is released", async || {
        let _ = store.heartbeat().await;
        store.event(id).await.is_ok_and(|shown| shown.status == EventStatus::Pending)
    })
    .await;
    assert_eq!(store.claim(now()).await.unwrap(), 1, "the owned claim is not released");
    let again = claims.try_recv().unwrap();
    assert_eq!((again.event.id, again.attempt), (id, 1), "no attempt is charged");
    for claimed in [owned, again] {
        assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    }
}

/// Undoes settlements, like a server crash before they were on disk.
async fn unsettle(schema: &Schema) -> u64 {
    let undo = schema.sql("UPDATE redrive.event SET status = 1, due_at = created_at WHERE status = 3");
    connect().await.execute(&undo, &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_claims_finds_settlements_that_the_server_lost() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    store.heartbeat().await.unwrap();
    let (_sink, mut claims) = attach(&store, 10);
    for _ in 0..3 {
        let (_, claimed) = start(&store, &mut claims).await;
        store.settle(claimed, done()).await.unwrap();
    }
    proxy.refuse();
    assert_eq!(unsettle(&schema).await, 3);
    proxy.heal();
    eventually("all claims are released", async || {
        let _ = store.heartbeat().await;
        store.stats().await.is_ok_and(|stats| stats.pending == 3)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_after_an_unnoticed_server_crash_leaves_no_claims_behind() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let (_sink, mut claims) = attach(&store, 10);
    for _ in 0..3 {
        let (_, claimed) = start(&store, &mut claims).await;
        store.settle(claimed, done()).await.unwrap();
    }
    assert_eq!(unsettle(&schema).await, 3);
    store.close().await.unwrap();
    let other = open(schema.options()).await;
    assert_eq!(counts(&other).await, Stats { pending: 3, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatedly_terminated_connections_lose_nothing() {
    let schema = Schema::new();
    let name = schema.name.clone();
    let config = config_with(|config| config.application_name(&name));
    let store = Arc::new(PostgresStore::open_with(config, schema.options()).await.unwrap());
    let (sink, mut claims) = attach(&store, 50);
    let killer = tokio::spawn({
        let name = schema.name.clone();
        async move {
            let client = connect().await;
            for _ in 0..6 {
                tokio::time::sleep(Duration::from_millis(150)).await;
                let all =
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
                client.query(all, &[&name]).await.unwrap();
            }
        }
    });
    let worker = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            while let Some(claimed) = claims.recv().await {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.settle(claimed, done()).await });
            }
        }
    });
    let mut publishers = JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(&store);
        publishers.spawn(async move {
            let mut ids = Vec::new();
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(1200) {
                let new = event();
                let id = new.id;
                if store.append(vec![new]).await.is_ok() {
                    ids.push(id);
                }
            }
            ids
        });
    }
    let published: Vec<EventId> = publishers.join_all().await.into_iter().flatten().collect();
    killer.await.unwrap();
    assert!(published.len() > 100, "too few events were published: {}", published.len());
    eventually("all events are handled", async || {
        let _ = store.heartbeat().await;
        let _ = store.claim(now()).await;
        let Ok(stats) = store.stats().await else { return false };
        stats.pending + stats.processing == 0
    })
    .await;
    for id in &published {
        let shown = store.event(*id).await.unwrap();
        assert_eq!(
            (shown.status, shown.retry_count),
            (EventStatus::Done, 0),
            "a live process is not charged"
        );
    }
    assert_eq!(sink.free_slots(), 50);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_transaction_are_visible_once_it_is_committed() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let mut client = connect().await;
    let (kept, lost) = (event(), event());
    let with_delivery =
        NewEvent { to: Routing::Each(vec![SubscriptionName::new("billing").unwrap()]), ..event() };
    let transaction = client.transaction().await.unwrap();
    let events = [kept.clone(), with_delivery.clone(), kept.clone()];
    let answers = append_in(&transaction, &schema.name, &events).await.unwrap();
    assert_eq!(answers, [Appended::New, Appended::New, Appended::Duplicate]);
    assert!(matches!(store.event(kept.id).await, Err(StoreError::NoSuchEvent { .. })));
    let other = NewEvent { payload: "\"other\"".into(), ..kept.clone() };
    let beside = event();
    let refused = append_in(&transaction, &schema.name, &[beside.clone(), other]).await.unwrap_err();
    assert!(matches!(refused, StoreError::IdTaken { id } if id == kept.id), "{refused}");
    transaction.commit().await.unwrap();
    assert!(
        store.event(beside.id).await.is_err(),
        "none of the batch is stored, and the transaction was still usable"
    );
    let transaction = client.transaction().await.unwrap();
    append_in(&transaction, &schema.name, std::slice::from_ref(&lost)).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(matches!(store.event(lost.id).await, Err(StoreError::NoSuchEvent { .. })));
    assert_eq!(store.event(kept.id).await.unwrap().payload.get(), &*kept.payload);
    let (_sink, mut claims) = attach(&store, 10);
    eventually("both events are claimed", async || {
        store.claim(now()).await.unwrap() > 0 || !claims.is_empty()
    })
    .await;
    let mut found: Vec<_> =
        std::iter::from_fn(|| claims.try_recv().ok()).map(|claimed| claimed.event.id).collect();
    found.sort();
    let mut expected = vec![kept.id, with_delivery.id];
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sql_function_publishes_events() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let client = connect().await;
    let publish = schema.sql(
        r#"SELECT redrive.publish('order.created', '{"order":  7, "text": "\u0000"}', metadata => '{"tenant": "t-1"}')"#,
    );
    let id: uuid::Uuid = client.query_one(&publish, &[]).await.unwrap().get(0);
    assert_eq!(id.get_version_num(), 7, "ids are in order of time");
    let shown = store.event(EventId::from_uuid(id)).await.unwrap();
    assert_eq!(shown.payload.get(), r#"{"order":  7, "text": "\u0000"}"#, "the payload is unchanged");
    assert_eq!((shown.metadata["tenant"].as_str(), shown.status), ("t-1", EventStatus::Pending));
    let given = uuid::Uuid::new_v4();
    let publish = schema
        .sql("SELECT redrive.publish('order.paid', 'null', id => $1, due => now() + interval '1 hour')");
    for _ in 0..2 {
        assert_eq!(client.query_one(&publish, &[&given]).await.unwrap().get::<_, uuid::Uuid>(0), given);
    }
    assert_eq!(counts(&store).await, Stats { pending: 2, ..Stats::default() }, "the same id is one event");
    let (_sink, mut claims) = attach(&store, 10);
    let soon = Timestamp::from_millis(now().as_millis() + 5_000);
    assert_eq!(store.claim(soon).await.unwrap(), 1, "the other event is not due");
    assert_eq!(claims.try_recv().unwrap().event.id, EventId::from_uuid(id));
    for wrong in [
        "('order created', '1')",
        "('', '1')",
        "(NULL, '1')",
        "('order.*', '1')",
        "('a', NULL)",
        "('a', '{')",
        "('a', '1', metadata => '{\"a\": 1}')",
        "('a', '1', metadata => '[]')",
    ] {
        let refused = client.batch_execute(&schema.sql(&format!("SELECT redrive.publish{wrong}"))).await;
        assert!(refused.is_err(), "{wrong}");
    }
    let view = schema.sql("SELECT status, created_at FROM redrive.events WHERE id = $1");
    let row = client.query_one(&view, &[&id]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "processing");
    assert!(row.get::<_, &str>(1).parse::<Timestamp>().is_ok(), "in the format of the specification");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_only_store_uses_no_session_locks() {
    let schema = Schema::new();
    let store = open(PostgresOptions { poll_only: true, lease: SHORT, ..schema.options() }).await;
    let (_sink, mut claims) = attach(&store, 10);
    let (_, claimed) = start(&store, &mut claims).await;
    store.heartbeat().await.unwrap();
    assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    let client = connect().await;
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                 AND classid = (SELECT oid FROM pg_namespace WHERE nspname = $1)";
    assert_eq!(client.query_one(locks, &[&schema.name]).await.unwrap().get::<_, i64>(0), 0);
    // A restarted process waits for the lease.
    let (id, _lost) = start(&store, &mut claims).await;
    drop(store);
    let again = open(PostgresOptions { poll_only: true, lease: SHORT, ..schema.options() }).await;
    assert!(again.recover(now()).await.unwrap().is_empty());
    eventually("the lease expires", async || {
        again.maintain(now(), None).await.unwrap();
        again.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_is_handled_at_once_changes_no_index() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let (_sink, mut claims) = attach(&store, 1000);
    store.append((0..300).map(|_| event()).collect()).await.unwrap();
    while let Ok(claimed) = claims.try_recv() {
        store.settle(claimed, done()).await.unwrap();
    }
    drop(store); // the server updates its statistics when the connections end
    let client = connect().await;
    let query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'event'";
    let mut counted = (0, 0);
    eventually("the server has updated its statistics", async || {
        let row = client.query_one(query, &[&schema.name]).await.unwrap();
        counted = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        counted.0 == 300
    })
    .await;
    assert!(counted.1 > 270, "of {} changes {} were HOT", counted.0, counted.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_follows_the_clock_of_the_database() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let database: i64 = connect().await.query_one(query, &[]).await.unwrap().get(0);
    let apart = || store.clock().now().as_millis() - database;
    assert!(apart().abs() < 1000, "{} ms apart", apart());
    // The database's clock differs from the machine's.
    schema.move_time(Duration::from_secs(3600)).await;
    store.heartbeat().await.unwrap();
    assert!((3_599_000..3_620_000).contains(&apart()), "{} ms apart", apart());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_an_event_by_hand_deletes_its_dependent_rows() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let (_sink, mut claims) = attach(&store, 10);
    let (_, claimed) = start(&store, &mut claims).await;
    store.settle(claimed, dead()).await.unwrap();
    let client = connect().await;
    client.batch_execute(&schema.sql("DELETE FROM redrive.event")).await.unwrap();
    for table in ["payload", "attempt", "dead_letter"] {
        let query = schema.sql(&format!("SELECT count(*) FROM redrive.{table}"));
        assert_eq!(client.query_one(&query, &[]).await.unwrap().get::<_, i64>(0), 0, "{table}");
    }
}

/// A notifying transaction takes a server-wide lock at commit, so one notification must be enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_the_caller_notifies_once() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let (listener, mut connection) = tokio_postgres::connect(&server(), tokio_postgres::NoTls).await.unwrap();
    let (sender, mut notifications) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification);
            }
        }
    });
    listener.batch_execute(&format!("LISTEN redrive_{}", schema.name)).await.unwrap();
    let mut own = connect().await;
    let transaction = own.transaction().await.unwrap();
    for _ in 0..3 {
        append_in(&transaction, &schema.name, &[event(), event()]).await.unwrap();
        transaction.batch_execute(&schema.sql("SELECT redrive.publish('order.created', '1')")).await.unwrap();
    }
    transaction.commit().await.unwrap();
    own.batch_execute(&format!("NOTIFY redrive_{}, 'the last'", schema.name)).await.unwrap();
    let mut payloads = Vec::new();
    while payloads.last().is_none_or(|payload| payload != "the last") {
        let notification =
            tokio::time::timeout(Duration::from_secs(20), notifications.recv()).await.unwrap().unwrap();
        payloads.push(notification.payload().to_owned());
    }
    assert_eq!(payloads, ["", "the last"]);
    store.close().await.unwrap();
}
