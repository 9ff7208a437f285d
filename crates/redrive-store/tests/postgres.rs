//! What only a store that many processes share can show.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_retry::{DeadReason, FailureClass, Timestamp};
use redrive_store::postgres::{Durability, append_in};
use redrive_store::{
    Appended, ClaimSink, Claimed, EventId, EventStatus, FailedAttempt, Finished, NewEvent, PostgresOptions,
    PostgresStore, Redrive, Settlement, Stats, Store, StoreError, SubscriptionName, To, Verdict,
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

fn attach(store: &PostgresStore, room: usize) -> (ClaimSink, UnboundedReceiver<Claimed>) {
    let (sink, claims) = ClaimSink::new(room);
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

/// Waits for something that must come soon.
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
async fn what_a_silent_process_held_is_taken_over_and_it_cannot_settle_it_any_more() {
    let schema = Schema::new();
    let silent = open(named(&schema, "a", SHORT)).await;
    let (_sink, mut claims) = attach(&silent, 10);
    let (id, late) = start(&silent, &mut claims).await;
    let heir = open(named(&schema, "b", SHORT)).await;
    eventually("the lease runs out", async || {
        heir.maintain(now(), None).await.unwrap();
        heir.event(id).await.unwrap().status == EventStatus::Pending
    })
    .await;
    let shown = heir.event(id).await.unwrap();
    assert_eq!(
        (shown.retry_count, shown.attempts[0].class),
        (1, Some(FailureClass::Crashed)),
        "the attempt is charged"
    );

    let (_sink, mut heirs) = attach(&heir, 10);
    assert_eq!(heir.claim(now()).await.unwrap(), 1);
    let claimed = heirs.try_recv().unwrap();
    assert_eq!(claimed.attempt, 2);
    assert_eq!(silent.settle(late, dead()).await.unwrap(), Finished::NotYet, "it wakes too late");
    assert_eq!(heir.event(id).await.unwrap().status, EventStatus::Processing);
    assert_eq!(heir.settle(claimed, done()).await.unwrap(), Finished::Done { retried: true });

    // And it lives on, under another key.
    silent.heartbeat().await.unwrap();
    let (_, claimed) = start(&silent, &mut claims).await;
    assert_eq!(silent.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    assert_eq!(counts(&heir).await, Stats { done: 2, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_declared_dead_strands_nothing_when_it_publishes_and_claims() {
    let schema = Schema::new();
    let silent = open(named(&schema, "a", SHORT)).await;
    let (_sink, mut claims) = attach(&silent, 10);
    let (_, first) = start(&silent, &mut claims).await;
    let heir = open(named(&schema, "b", SHORT)).await;
    let taken_over = async || {
        heir.maintain(now(), None).await.unwrap();
        counts(&heir).await.pending == 1
    };
    eventually("the lease runs out", taken_over).await;
    drop(first);
    // It does not know yet.
    silent.append(vec![event()]).await.unwrap();
    assert!(claims.try_recv().is_err(), "nothing is handed to the dead");
    assert_eq!(counts(&heir).await, Stats { pending: 2, ..Stats::default() }, "it waits for the living");
    assert_eq!(silent.claim(now()).await.unwrap(), 2, "who claims finds out, and begins a new life");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_takes_its_own_back_at_once_and_nobody_elses() {
    let schema = Schema::new();
    let hour = Duration::from_secs(3600);
    let (one, two) = (open(named(&schema, "one", hour)).await, open(named(&schema, "two", hour)).await);
    let ((_one_sink, mut ones), (_two_sink, mut twos)) = (attach(&one, 10), attach(&two, 10));
    let (id, _lost) = start(&one, &mut ones).await;
    let (_, kept) = start(&two, &mut twos).await;
    let same = open(named(&schema, "two", hour)).await;
    assert!(same.recover(now()).await.unwrap().is_empty(), "both live");
    drop(one);
    assert!(same.recover(now()).await.unwrap().is_empty(), "another name waits for the lease");
    let again = open(named(&schema, "one", hour)).await;
    let mut recovered = Vec::new();
    eventually("the lock is free with the end of the connection", async || {
        recovered = again.recover(now()).await.unwrap();
        !recovered.is_empty()
    })
    .await;
    assert_eq!(recovered.iter().map(|unit| unit.id).collect::<Vec<_>>(), [id]);
    assert_eq!(two.settle(kept, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_closes_leaves_its_work_to_whoever_comes() {
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
async fn what_is_redriven_cannot_be_settled_by_a_claim_of_its_former_life() {
    let schema = Schema::new();
    let silent = open(named(&schema, "a", SHORT)).await;
    let (_sink, mut claims) = attach(&silent, 10);
    let (id, late) = start(&silent, &mut claims).await;
    let heir = open(named(&schema, "b", SHORT)).await;
    let (_sink, mut heirs) = attach(&heir, 10);
    eventually("the lease runs out", async || {
        heir.maintain(now(), None).await.unwrap();
        heir.claim(now()).await.unwrap() == 1
    })
    .await;
    heir.settle(heirs.try_recv().unwrap(), dead()).await.unwrap();
    heir.redrive(id, Redrive { at: now(), payload: None }).await.unwrap();
    // Its count is that of the first attempt again.
    assert_eq!(heir.claim(now()).await.unwrap(), 1);
    let claimed = heirs.try_recv().unwrap();
    assert_eq!(claimed.attempt, late.attempt);
    assert_eq!(silent.settle(late, done()).await.unwrap(), Finished::NotYet);
    assert_eq!(heir.event(id).await.unwrap().status, EventStatus::Processing);
    assert_eq!(heir.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_work_and_nothing_is_handed_out_twice() {
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
async fn the_last_of_two_deliveries_that_end_together_ends_the_event() {
    let schema = Schema::new();
    let (one, two) = (open(schema.options()).await, open(schema.options()).await);
    let ((_one_sink, mut ones), (_two_sink, mut twos)) = (attach(&one, 1), attach(&two, 1));
    for _ in 0..40 {
        let names = ["audit", "billing"].map(|name| SubscriptionName::new(name).unwrap());
        one.append(vec![NewEvent { to: To::Each(names.into()), ..event() }]).await.unwrap();
        eventually("the other takes what found no room", async || two.claim(now()).await.unwrap() == 1).await;
        let (first, second) = (ones.try_recv().unwrap(), twos.try_recv().unwrap());
        let (a, b) = tokio::join!(one.settle(first, done()), two.settle(second, done()));
        let mut ends = [a.unwrap(), b.unwrap()];
        ends.sort_by_key(|end| *end == Finished::NotYet);
        assert_eq!(ends, [Finished::Done { retried: false }, Finished::NotYet]);
    }
    assert_eq!(counts(&one).await, Stats { done: 40, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_takes_a_transaction_has_it_for_itself() {
    let schema = Schema::new();
    let store = Arc::new(open(PostgresOptions { lanes: 1, ..schema.options() }).await);
    let (_sink, mut claims) = attach(&store, 100);
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(start(&store, &mut claims).await.1);
    }
    store.attach(None);
    // More than fits into one statement, while others end what they have begun.
    let heavy: Arc<str> = format!("\"{}\"", "x".repeat(1_000_000)).into();
    let batch: Vec<NewEvent> = (0..40).map(|_| NewEvent { payload: Arc::clone(&heavy), ..event() }).collect();
    // All of it waits behind the first one.
    let mut client = connect().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute(&schema.sql("LOCK TABLE redrive.event IN EXCLUSIVE MODE")).await.unwrap();
    let mut settling = JoinSet::new();
    for claimed in held {
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
async fn others_hear_of_new_work_at_once() {
    let schema = Schema::new();
    let slowly = PostgresOptions { look_again: Duration::from_secs(3600), ..schema.options() };
    let (one, two) = (open(slowly.clone()).await, open(slowly).await);
    let due = two.due_hint();
    let said = async {
        // The other may only begin to listen.
        loop {
            one.append(vec![event()]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = due.changed() => {}
        () = said => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("nobody has said anything"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_open_a_new_schema_at_once() {
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
async fn an_address_may_name_the_schema() {
    let schema = Schema::new();
    let address = |name: &str| {
        let joint = if server().contains('?') { '&' } else { '?' };
        format!("{}{joint}schema={name}", server())
    };
    let by_address = PostgresStore::open(&address(&schema.name), PostgresOptions::default()).await.unwrap();
    by_address.append(vec![event()]).await.unwrap();
    assert_eq!(counts(&open(schema.options()).await).await.pending, 1, "it is the same place");
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
async fn a_server_that_may_lose_what_it_confirms_is_refused_unless_that_is_wanted() {
    let schema = Schema::new();
    let mut config: tokio_postgres::Config = server().parse().unwrap();
    config.options("-c synchronous_commit=off");
    let error = PostgresStore::open_with(config.clone(), schema.options()).await.unwrap_err();
    assert!(error.to_string().contains("set synchronous_commit = on"), "{error}");
    let relaxed = PostgresOptions { durability: Durability::Relaxed, ..schema.options() };
    PostgresStore::open_with(config, relaxed).await.unwrap();
}

/// The address of the server with other parts.
fn elsewhere(
    change: impl FnOnce(&mut tokio_postgres::Config) -> &mut tokio_postgres::Config,
) -> tokio_postgres::Config {
    let mut config: tokio_postgres::Config = server().parse().unwrap();
    change(&mut config).clone()
}

async fn through(proxy: &Proxy, options: PostgresOptions) -> PostgresStore {
    PostgresStore::open_with(proxy.config(), options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_whose_answer_is_lost_is_found_and_is_one_event() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let options = PostgresOptions { lanes: 1, ..schema.options() };
    let store = through(&proxy, options).await;
    let (_sink, mut claims) = attach(&store, 100);
    let (_, first) = start(&store, &mut claims).await;
    for round in 0..20 {
        // Both what is running at once and what waits.
        let due_at =
            if round % 2 == 0 { now() } else { Timestamp::from_millis(now().as_millis() + 1_000_000) };
        let new = NewEvent { due_at, created_at: due_at.min(now()), ..event() };
        let id = new.id;
        proxy.cut(if round % 4 < 2 { Cut::Answer } else { Cut::Question });
        assert_eq!(store.append(vec![new.clone()]).await.unwrap(), [Appended::New], "round {round}");
        assert_eq!(store.append(vec![new]).await.unwrap(), [Appended::Duplicate], "round {round}");
        assert_eq!(store.event(id).await.unwrap().id, id);
    }
    let handed_over: Vec<Claimed> = std::iter::from_fn(|| claims.try_recv().ok()).collect();
    assert_eq!(handed_over.len(), 10, "what is running is in somebody's hands");
    for claimed in handed_over {
        assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    }
    store.settle(first, done()).await.unwrap();
    assert_eq!(counts(&store).await, Stats { done: 11, pending: 10, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_whose_answer_is_lost_is_told_as_it_was() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, PostgresOptions { lanes: 1, ..schema.options() }).await;
    let (sink, mut claims) = attach(&store, 100);
    for round in 0..6 {
        let (id, claimed) = start(&store, &mut claims).await;
        proxy.cut(if round % 2 == 0 { Cut::Answer } else { Cut::Question });
        let (end, expected) = match round % 3 {
            0 => (done(), Finished::Done { retried: false }),
            1 => (dead(), Finished::Dead { retried: false }),
            _ => (settlement(Verdict::Retry(Timestamp::from_millis(i64::MAX / 2))), Finished::NotYet),
        };
        assert_eq!(store.settle(claimed, end).await.unwrap(), expected, "round {round}");
        let letters = store.dead_letter(id).await.map_or(0, |letters| letters.len());
        assert_eq!(letters, usize::from(round % 3 == 1), "once");
    }
    assert_eq!(sink.room(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_goes_back() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    store.append((0..5).map(|_| event()).collect()).await.unwrap();
    let (sink, mut claims) = attach(&store, 1);
    assert_eq!(store.claim(now()).await.unwrap(), 1, "all statements are prepared");
    let held = claims.try_recv().unwrap();
    let (sink_two, mut claims_two) = attach(&store, 100);
    proxy.cut(Cut::Answer);
    assert!(store.claim(now()).await.is_err());
    proxy.heal();
    assert_eq!(sink_two.room(), 100, "no place is lost");
    eventually("what was claimed unheard is released", async || {
        store.heartbeat().await.unwrap();
        counts(&store).await.pending == 4
    })
    .await;
    assert_eq!(store.claim(now()).await.unwrap(), 4);
    let mut again: Vec<Claimed> = std::iter::from_fn(|| claims_two.try_recv().ok()).collect();
    assert!(again.iter().all(|claimed| claimed.attempt == 1), "nothing was charged");
    again.push(held);
    for claimed in again {
        assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    }
    assert_eq!(sink.room(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_leaves_after_a_lost_answer_leaves_nothing_behind() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    // Newer than what is claimed unheard, so that only newer keys seem to be held.
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
        assert_eq!(claimed.attempt, 1, "nothing was charged");
        other.settle(claimed, done()).await.unwrap();
    }
    assert_eq!(counts(&other).await, Stats { done: 4, ..Stats::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_the_server_has_lost_is_found_out_and_the_event_comes_again() {
    let schema = Schema::new();
    let proxy = Proxy::start().await;
    let store = through(&proxy, schema.options()).await;
    let (_sink, mut claims) = attach(&store, 10);
    let (_, held) = start(&store, &mut claims).await;
    let (id, claimed) = start(&store, &mut claims).await;
    assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    proxy.refuse();
    assert_eq!(unsettle(&schema).await, 1);
    proxy.heal();
    eventually("it is given back", async || {
        let _ = store.heartbeat().await;
        store.event(id).await.is_ok_and(|shown| shown.status == EventStatus::Pending)
    })
    .await;
    assert_eq!(store.claim(now()).await.unwrap(), 1, "and what is still held is not");
    let again = claims.try_recv().unwrap();
    assert_eq!((again.event.id, again.attempt), (id, 1), "nothing is charged");
    for claimed in [held, again] {
        assert_eq!(store.settle(claimed, done()).await.unwrap(), Finished::Done { retried: false });
    }
}

/// What a crash of the server leaves behind if it had not written the last moments down.
async fn unsettle(schema: &Schema) -> u64 {
    let undo = schema.sql("UPDATE redrive.event SET status = 1, due_at = created_at WHERE status = 3");
    connect().await.execute(&undo, &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_has_lost_is_found_also_by_who_holds_nothing_any_more() {
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
    eventually("all are given back", async || {
        let _ = store.heartbeat().await;
        store.stats().await.is_ok_and(|stats| stats.pending == 3)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_a_server_that_has_crashed_unseen_leaves_nothing_behind() {
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
async fn every_connection_is_ended_again_and_again_and_nothing_is_lost() {
    let schema = Schema::new();
    let name = schema.name.clone();
    let config = elsewhere(|config| config.application_name(&name));
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
    assert!(published.len() > 100, "it went on: {}", published.len());
    eventually("everything is handled", async || {
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
            "nothing is charged to the living"
        );
    }
    assert_eq!(sink.room(), 50);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_transaction_are_there_when_it_is_committed_and_not_before() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let mut client = connect().await;
    let (kept, lost) = (event(), event());
    let addressed = NewEvent { to: To::Each(vec![SubscriptionName::new("billing").unwrap()]), ..event() };
    let transaction = client.transaction().await.unwrap();
    let events = [kept.clone(), addressed.clone(), kept.clone()];
    let answers = append_in(&transaction, &schema.name, &events).await.unwrap();
    assert_eq!(answers, [Appended::New, Appended::New, Appended::Duplicate]);
    assert!(matches!(store.event(kept.id).await, Err(StoreError::NoSuchEvent { .. })));
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    append_in(&transaction, &schema.name, std::slice::from_ref(&lost)).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(matches!(store.event(lost.id).await, Err(StoreError::NoSuchEvent { .. })));
    assert_eq!(store.event(kept.id).await.unwrap().payload.get(), &*kept.payload);
    let (_sink, mut claims) = attach(&store, 10);
    eventually("both are found", async || store.claim(now()).await.unwrap() > 0 || !claims.is_empty()).await;
    let mut found: Vec<_> =
        std::iter::from_fn(|| claims.try_recv().ok()).map(|claimed| claimed.event.id).collect();
    found.sort();
    let mut expected = vec![kept.id, addressed.id];
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_language_publishes_by_a_function() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let client = connect().await;
    let publish = schema.sql(
        r#"SELECT redrive.publish('order.created', '{"order":  7, "text": "\u0000"}', metadata => '{"tenant": "t-1"}')"#,
    );
    let id: uuid::Uuid = client.query_one(&publish, &[]).await.unwrap().get(0);
    assert_eq!(id.get_version_num(), 7, "in order of time");
    let shown = store.event(EventId::from_uuid(id)).await.unwrap();
    assert_eq!(shown.payload.get(), r#"{"order":  7, "text": "\u0000"}"#, "letter by letter");
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
    assert_eq!(store.claim(soon).await.unwrap(), 1, "the other is not due");
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
    assert!(row.get::<_, &str>(1).parse::<Timestamp>().is_ok(), "as the specification writes it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_nothing_outlives_a_transaction() {
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
    // Whoever comes back waits for the lease.
    let (id, _lost) = start(&store, &mut claims).await;
    drop(store);
    let again = open(PostgresOptions { poll_only: true, lease: SHORT, ..schema.options() }).await;
    assert!(again.recover(now()).await.unwrap().is_empty());
    eventually("the lease runs out", async || {
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
    drop(store); // its numbers are told when its connections end
    let client = connect().await;
    let query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'event'";
    let mut counted = (0, 0);
    eventually("the server has counted", async || {
        let row = client.query_one(query, &[&schema.name]).await.unwrap();
        counted = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        counted.0 == 300
    })
    .await;
    assert!(counted.1 > 270, "of {} changes {} were HOT", counted.0, counted.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_the_databases() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let database: i64 = connect().await.query_one(query, &[]).await.unwrap().get(0);
    let apart = || store.clock().now().as_millis() - database;
    assert!(apart().abs() < 1000, "{} ms apart", apart());
    // It goes another way than the machine's.
    schema.move_time(Duration::from_secs(3600)).await;
    store.heartbeat().await.unwrap();
    assert!((3_599_000..3_620_000).contains(&apart()), "{} ms apart", apart());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_deletes_an_event_by_hand_deletes_all_of_it() {
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

/// A transaction that notifies commits alone on the whole server: once is enough for all who listen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_the_callers_own_notifies_once() {
    let schema = Schema::new();
    let store = open(schema.options()).await;
    let (listener, mut connection) = tokio_postgres::connect(&server(), tokio_postgres::NoTls).await.unwrap();
    let (heard, mut news) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = heard.send(notification);
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
        let notification = tokio::time::timeout(Duration::from_secs(20), news.recv()).await.unwrap().unwrap();
        payloads.push(notification.payload().to_owned());
    }
    assert_eq!(payloads, ["", "the last"]);
    store.close().await.unwrap();
}
