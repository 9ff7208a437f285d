//! Tests with a synchronous standby: nothing is acknowledged before the standby has it, so a failover loses nothing.
//!
//! A backend that ends while its commit waits for the standby leaves the commit on the primary alone. A repeated call finds it
//! there, writes nothing, and must wait all the same.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use redrive_retry::Timestamp;
use redrive_retry::decision::DeadReason;
use redrive_retry::idempotency::{Begin, Fingerprint, IdempotencyKey, IdempotencyStore, OwnerToken};
use redrive_servers::Postgres;
use redrive_store::postgres::append_in;
use redrive_store::traits::*;
use redrive_store::{
    Appended, ClaimSink, DocumentKey, EventId, NewEvent, PostgresOptions, PostgresStore, Redrive, Replayed,
    Routing, StoreError, SubscriptionName, SubscriptionRow, Verdict,
};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::postgres_server::{event, now, settlement};

/// Time for which a test waits for something that happens at once.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A primary with its synchronous standby.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    client: Client,
}

async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

async fn open(server: &Postgres) -> PostgresStore {
    let options = PostgresOptions { outage_timeout: Duration::from_secs(3), ..PostgresOptions::default() };
    PostgresStore::open(&server.url(), options).await.unwrap()
}

impl Pair {
    async fn start() -> Self {
        let primary = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
        let standby = primary.start_standby().unwrap_or_else(|missing| panic!("{missing}"));
        let client = connect(&primary).await;
        let began = Instant::now();
        let query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while client.query_one(query, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(began.elapsed() < TIMEOUT, "the standby connects");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Pair { primary, standby, client }
    }

    /// Returns when a statement that began after `since` waits for the standby: its backend, and when it began.
    async fn waiting<T>(&self, work: &JoinHandle<T>, since: SystemTime) -> (i32, SystemTime) {
        let query =
            "SELECT pid, query_start FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start > $1";
        let began = Instant::now();
        loop {
            assert!(!work.is_finished(), "acknowledged without the standby");
            assert!(began.elapsed() < TIMEOUT, "a statement waits for the standby");
            if let Some(row) = self.client.query_opt(query, &[&since]).await.unwrap() {
                return (row.get(0), row.get(1));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs work while the standby is stopped, and ends its wait for the standby: what it wrote is on the primary alone.
    async fn interrupt<T: Send + 'static>(
        &self,
        how: &str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> (JoinHandle<T>, SystemTime) {
        self.standby.crash().unwrap();
        let work = tokio::spawn(work);
        let (backend, since) = self.waiting(&work, SystemTime::UNIX_EPOCH).await;
        self.client.execute(&format!("SELECT {how}($1)"), &[&backend]).await.unwrap();
        (work, since)
    }

    /// The answer of work, which must not come before the standby is back.
    async fn after_the_standby<T>(&self, work: JoinHandle<T>, since: SystemTime) -> T {
        self.waiting(&work, since).await;
        assert!(!work.is_finished(), "acknowledged without the standby");
        self.standby.resume().unwrap();
        tokio::time::timeout(TIMEOUT, work).await.unwrap().unwrap()
    }

    /// Runs work whose backend is ended while it waits for the standby. Returns its answer, which must wait for the standby.
    async fn interrupted<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (work, since) = self.interrupt("pg_terminate_backend", work).await;
        self.after_the_standby(work, since).await
    }

    /// Runs a statement whose backend is ended while it waits for the standby, so that only the primary has its changes.
    async fn leave_on_primary(&self, statement: String) {
        let client = connect(&self.primary).await;
        let (work, _) = self
            .interrupt("pg_terminate_backend", async move { client.batch_execute(&statement).await })
            .await;
        tokio::time::timeout(TIMEOUT, work).await.unwrap().unwrap().unwrap_err();
    }

    /// The answer of work that finds what only the primary has, which must not come before the standby is back.
    async fn finds<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let began: SystemTime = self.client.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0);
        self.after_the_standby(tokio::spawn(work), began).await
    }
}

fn publish(new: &NewEvent) -> String {
    format!("SELECT redrive.publish('order.created', '{{\"order\":7}}', '{}')", new.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_acknowledged_when_the_standby_has_it() {
    let pair = Pair::start().await;
    let store = Arc::new(open(&pair.primary).await);
    let append = |new: NewEvent| {
        let store = Arc::clone(&store);
        async move { store.append(vec![new]).await.unwrap() }
    };
    // The store itself repeats an insert whose backend was ended, and finds the event.
    assert_eq!(pair.interrupted(append(event())).await, [Appended::New]);
    // An insert whose wait was cancelled succeeds with a warning.
    let (work, since) = pair.interrupt("pg_cancel_backend", append(event())).await;
    assert_eq!(pair.after_the_standby(work, since).await, [Appended::New]);
    // A publisher repeats its event.
    let new = event();
    pair.leave_on_primary(publish(&new)).await;
    assert_eq!(pair.finds(append(new.clone())).await, [Appended::Duplicate]);
    assert_eq!(store.append(vec![new, event()]).await.unwrap(), [Appended::Duplicate, Appended::New]);
    // Inside the publisher's own transaction, and by the SQL function.
    let again = event();
    pair.leave_on_primary(publish(&again)).await;
    let mut client = connect(&pair.primary).await;
    let repeated = again.clone();
    let appended = pair.finds(async move {
        let transaction = client.transaction().await.unwrap();
        let appended = append_in(&transaction, "redrive", &[repeated]).await.unwrap();
        transaction.commit().await.unwrap();
        appended
    });
    assert_eq!(appended.await, [Appended::Duplicate]);
    let last = event();
    pair.leave_on_primary(publish(&last)).await;
    let (client, repeat) = (connect(&pair.primary).await, publish(&last));
    pair.finds(async move { client.batch_execute(&repeat).await.unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_no_acknowledged_event() {
    let pair = Pair::start().await;
    let (one, two) = (open(&pair.primary).await, open(&pair.primary).await);
    let new = event();
    let mut acknowledged: Vec<EventId> = Vec::new();
    for _ in 0..3 {
        let new = event();
        one.append(vec![new.clone()]).await.unwrap();
        acknowledged.push(new.id);
    }
    let published = new.clone();
    let (first, since) =
        pair.interrupt("pg_terminate_backend", async move { one.append(vec![published]).await }).await;
    let repeated = new.clone();
    let second = tokio::spawn(async move { two.append(vec![repeated]).await });
    // Both find the event on the primary. Neither is answered while both wait, or one was answered too early.
    let began = Instant::now();
    let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start > $1";
    while !first.is_finished()
        && !second.is_finished()
        && pair.client.query_one(query, &[&since]).await.unwrap().get::<_, i64>(0) < 2
    {
        assert!(began.elapsed() < TIMEOUT, "both publishers wait for the standby");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pair.primary.crash().unwrap();
    pair.standby.resume().unwrap();
    pair.standby.promote().unwrap();
    for answer in [first, second] {
        if tokio::time::timeout(TIMEOUT, answer).await.unwrap().unwrap().is_ok() {
            acknowledged.push(new.id);
        }
    }
    let promoted = open(&pair.standby).await;
    for id in acknowledged {
        assert!(promoted.event(id).await.is_ok(), "{id} was acknowledged, and is lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_document_is_acknowledged_when_the_standby_has_it() {
    let pair = Pair::start().await;
    let store = Arc::new(open(&pair.primary).await);
    let key = DocumentKey::new("thing", "one").unwrap();
    let (it, name) = (Arc::clone(&store), key.clone());
    let created = pair.interrupted(async move { it.create(name, "1".into()).await }).await.unwrap();
    assert_eq!((created.version, created.body.as_str()), (1, "1"));
    let (it, name) = (Arc::clone(&store), key.clone());
    let replaced = pair.interrupted(async move { it.replace(name, 1, "2".into()).await }).await.unwrap();
    assert_eq!((replaced.version, replaced.body.as_str()), (2, "2"));
    let (it, name) = (Arc::clone(&store), key.clone());
    assert!(pair.interrupted(async move { it.remove(name, None).await }).await.unwrap());
    // Another caller learns that the document exists, and that it does not exist.
    let insert = "INSERT INTO redrive.document VALUES ('thing/one', 1, '1', 0, 0)";
    pair.leave_on_primary(insert.into()).await;
    let (it, name) = (Arc::clone(&store), key.clone());
    let taken = pair.finds(async move { it.create(name, "2".into()).await }).await;
    assert!(matches!(taken, Err(StoreError::DocumentTaken { .. })), "{taken:?}");
    pair.leave_on_primary("DELETE FROM redrive.document".into()).await;
    let it = Arc::clone(&store);
    assert!(!pair.finds(async move { it.remove(key, None).await }).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_result_is_returned_when_the_standby_has_it() {
    const LEASE: Duration = Duration::from_secs(600);
    let pair = Pair::start().await;
    let store = Arc::new(open(&pair.primary).await);
    let (key, print) = (IdempotencyKey::new("payment").unwrap(), Fingerprint::of(&7).unwrap());
    let owner = OwnerToken::new();
    let (it, name) = (Arc::clone(&store), key.clone());
    let begun = pair.interrupted(async move { it.begin(&name, print, owner, LEASE).await });
    assert_eq!(begun.await.unwrap(), Begin::Acquired);
    let (it, name) = (Arc::clone(&store), key.clone());
    pair.interrupted(async move { it.complete(&name, owner, "1", None, LEASE).await }).await.unwrap();
    // A result that only the primary has.
    pair.leave_on_primary("UPDATE redrive.idempotency SET result = '2'".into()).await;
    let (it, name) = (Arc::clone(&store), key.clone());
    let begun = pair.finds(async move { it.begin(&name, print, OwnerToken::new(), LEASE).await });
    assert_eq!(begun.await.unwrap(), Begin::Completed { result: "2".into() });
    let (it, name) = (Arc::clone(&store), key.clone());
    assert!(pair.interrupted(async move { it.clear(&name).await }).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redriven_event_is_reported_when_the_standby_has_it() {
    let pair = Pair::start().await;
    let store = Arc::new(open(&pair.primary).await);
    let (sink, mut claims) = ClaimSink::new(1);
    store.attach(Some(sink));
    let new = event();
    store.append(vec![new.clone()]).await.unwrap();
    store.attach(None);
    let dead = settlement(Verdict::Dead(DeadReason::Permanent));
    store.settle(claims.try_recv().unwrap(), dead).await.unwrap();
    let redrive = |at: Timestamp| {
        let (store, id) = (Arc::clone(&store), new.id);
        async move { store.redrive(id, Redrive { at, payload: None }).await }
    };
    let (lost, _) = pair.interrupt("pg_terminate_backend", redrive(now())).await;
    let lost = tokio::time::timeout(TIMEOUT, lost).await.unwrap().unwrap();
    assert!(matches!(lost, Err(StoreError::Unknown { .. } | StoreError::Lost { .. })), "{lost:?}");
    let again = pair.finds(redrive(now())).await;
    assert!(matches!(again, Err(StoreError::NotDead { .. })), "{again:?}");

    let name = SubscriptionName::new("billing").unwrap();
    let replay = || {
        let (store, id, name) = (Arc::clone(&store), new.id, name.clone());
        async move { store.replay(id, name, now()).await.unwrap() }
    };
    pair.standby.crash().unwrap();
    assert_eq!(pair.finds(replay()).await, Replayed::Open);

    let row = SubscriptionRow {
        id: "1".into(),
        name: name.clone(),
        event_type: "order.*".into(),
        created_at: now(),
    };
    store.register(row).await.unwrap();
    let (it, gone) = (Arc::clone(&store), name.clone());
    pair.leave_on_primary("DELETE FROM redrive.subscriptions; DELETE FROM redrive.subscriber".into()).await;
    assert!(!pair.finds(async move { it.unregister(gone, now()).await }).await.unwrap());
}

/// A barrier costs a commit of its own, for which a publisher would wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_sets_a_barrier_only_if_its_id_exists() {
    let server = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    // The server decodes its log, which has each barrier as a message.
    connect(&server).await.batch_execute("ALTER SYSTEM SET wal_level = logical").await.unwrap();
    server.crash().unwrap();
    server.resume().unwrap();
    let mut client = connect(&server).await;
    let slot = "SELECT pg_create_logical_replication_slot('barriers', 'test_decoding')";
    client.batch_execute(slot).await.unwrap();
    let barriers = async |client: &Client| -> i64 {
        let query =
            "SELECT count(*) FILTER (WHERE data LIKE 'message: transactional: 1 prefix: redrive,%'), count(*)
                     FROM pg_logical_slot_get_changes('barriers', NULL, NULL)";
        let row = client.query_one(query, &[]).await.unwrap();
        assert!(row.get::<_, i64>(1) > 0, "the log is decoded");
        row.get(0)
    };
    let store = open(&server).await;
    let (sink, mut claims) = ClaimSink::new(2);
    store.attach(Some(sink));
    let to = Routing::Each(vec![SubscriptionName::new("billing").unwrap()]);
    let events = [event(), NewEvent { to, ..event() }];
    for event in &events {
        assert_eq!(store.append(vec![event.clone()]).await.unwrap(), [Appended::New]);
        store.settle(claims.recv().await.unwrap(), settlement(Verdict::Done)).await.unwrap();
    }
    store.attach(None);
    let batch = vec![event(), event(), event()];
    assert_eq!(store.append(batch.clone()).await.unwrap(), [Appended::New; 3]);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(append_in(&transaction, "redrive", &[event()]).await.unwrap(), [Appended::New]);
    transaction.commit().await.unwrap();
    let own = event();
    client.batch_execute(&publish(&own)).await.unwrap();
    assert_eq!(barriers(&client).await, 0, "publishes of new events, and their settlements");

    for event in &events {
        assert_eq!(store.append(vec![event.clone()]).await.unwrap(), [Appended::Duplicate]);
        assert_eq!(barriers(&client).await, 1);
    }
    assert_eq!(store.append(batch).await.unwrap(), [Appended::Duplicate; 3]);
    assert_eq!(barriers(&client).await, 1, "one for a batch");
    let transaction = client.transaction().await.unwrap();
    assert_eq!(append_in(&transaction, "redrive", &events[..1]).await.unwrap(), [Appended::Duplicate]);
    transaction.commit().await.unwrap();
    client.batch_execute(&publish(&own)).await.unwrap();
    assert_eq!(barriers(&client).await, 2, "one inside the publisher's transaction, one of the SQL function");
    // The statement for existing ids is used for a while after one was seen.
    assert_eq!(store.append(vec![event()]).await.unwrap(), [Appended::New]);
    assert_eq!(barriers(&client).await, 0);
    store.close().await.unwrap();
}
