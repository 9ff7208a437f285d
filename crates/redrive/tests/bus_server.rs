//! Properties of PostgreSQL: publishing inside the caller's transaction, in any language, and sharing work between processes.
//! Everything else is tested on every store.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::retry::BoxError;
use redrive::store::{PostgresOptions, PostgresStore, postgres};
use redrive::{Event, EventBus, EventId};
use redrive_servers::Schema;
use tokio_postgres::NoTls;

fn schema() -> Schema {
    Schema::new().unwrap_or_else(|missing| panic!("{missing}"))
}

/// Bus of a process with this name. It does not poll: it only reacts to notifications.
async fn open(schema: &Schema, instance: &str) -> EventBus {
    let options = PostgresOptions {
        schema: schema.name().into(),
        instance: instance.into(),
        poll_interval: Duration::from_secs(3600),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(schema.url(), options).await.unwrap();
    EventBus::builder().on(Arc::new(store)).await.unwrap()
}

/// Handler that records each event and signals it.
#[derive(Clone, Default)]
struct Handled {
    ids: Arc<Mutex<Vec<EventId>>>,
    changed: Arc<tokio::sync::Notify>,
}

impl Handled {
    fn by(&self, bus: &EventBus) {
        let handled = self.clone();
        bus.subscribe("*", move |event: Event| {
            handled.ids.lock().unwrap().push(event.id());
            handled.changed.notify_one();
            async { Ok::<_, BoxError>(()) }
        })
        .name("all")
        .register()
        .unwrap();
    }

    async fn until(&self, count: usize) -> Vec<EventId> {
        let enough = async {
            loop {
                let ids = self.ids.lock().unwrap().clone();
                if ids.len() >= count {
                    return ids;
                }
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), enough).await.expect("handled at once")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_can_join_the_callers_transaction() {
    let schema = schema();
    let bus = open(&schema, "one").await;
    let handled = Handled::default();
    handled.by(&bus);
    bus.start().await.unwrap();
    let (mut own, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    own.batch_execute("CREATE TEMP TABLE account (balance integer)").await.unwrap();
    let mut committed = None;
    for commit in [false, true] {
        let event = bus.publish("paid", &1).into_event().unwrap();
        committed = Some(event.id);
        let transaction = own.transaction().await.unwrap();
        transaction.execute("INSERT INTO account VALUES (1)", &[]).await.unwrap();
        postgres::append_in(&transaction, schema.name(), &[event]).await.unwrap();
        if commit {
            transaction.commit().await.unwrap();
        }
    }
    assert_eq!(handled.until(1).await, [committed.unwrap()], "only the one that was committed");

    // In any language that speaks SQL.
    let name = schema.name();
    let rolled_back =
        format!("BEGIN; INSERT INTO account VALUES (2); SELECT {name}.publish('paid', '2'); ROLLBACK");
    own.batch_execute(&rolled_back).await.unwrap();
    let publish = format!("SELECT {name}.publish('paid', '3')::text");
    let id: String = own.query_one(&publish, &[]).await.unwrap().get(0);
    assert_eq!(handled.until(2).await[1].to_string(), id);
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buses_on_one_server_share_the_work_without_duplicates() {
    let schema = schema();
    let (one, two) = (open(&schema, "one").await, open(&schema, "two").await);
    let handled = Handled::default();
    let mut published = Vec::new();
    // Events stored before the start are for both.
    for n in 0..200 {
        published.push(one.publish("x", &n).enqueue().await.unwrap());
    }
    for bus in [&one, &two] {
        handled.by(bus);
        bus.start().await.unwrap();
    }
    for n in 0..100 {
        published.push(one.publish("x", &n).enqueue().await.unwrap());
        published.push(two.publish("x", &n).enqueue().await.unwrap());
    }
    let mut ids = handled.until(published.len()).await;
    // A shutdown waits for running handlers, so a duplicate would be recorded by now.
    one.shutdown().await.unwrap();
    two.shutdown().await.unwrap();
    assert_eq!(handled.ids.lock().unwrap().len(), published.len());
    ids.sort();
    published.sort();
    assert_eq!(ids, published);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_published_or_redriven_by_another_process_are_claimed_at_once() {
    let schema = schema();
    let (publisher, worker) = (open(&schema, "publisher").await, open(&schema, "worker").await);
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    worker
        .subscribe("x", move |_: Event| {
            let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if is_first { Err(redrive::retry::ClassifyError::permanent("no")) } else { Ok(()) } }
        })
        .register()
        .unwrap();
    worker.start().await.unwrap();
    let id = publisher.publish("x", &1).enqueue().await.unwrap();
    let until = async |status| {
        tokio::time::timeout(Duration::from_secs(20), async {
            while publisher.store().event(id).await.unwrap().status != status {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{status} at once"));
    };
    until(redrive::events::EventStatus::Dlq).await;
    publisher.dlq().retry(id).await.unwrap();
    until(redrive::events::EventStatus::Done).await;
    publisher.shutdown().await.unwrap();
    worker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_with_a_null_due_time_is_due() {
    let schema = schema();
    let bus = open(&schema, "one").await;
    let ids = [bus.publish("x", &1).enqueue().await.unwrap(), bus.publish("x", &2).enqueue().await.unwrap()];
    let (own, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let change = format!("UPDATE {}.event SET due_at = NULL WHERE id = '{}'", schema.name(), ids[0]);
    own.batch_execute(&change).await.unwrap();
    let handled = Handled::default();
    handled.by(&bus);
    bus.start().await.unwrap();
    let mut found = handled.until(2).await;
    found.sort();
    assert_eq!(found, ids, "and delays no other process");
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_is_notified_when_another_process_handles_its_event() {
    let schema = schema();
    let (publisher, worker) = (open(&schema, "publisher").await, open(&schema, "worker").await);
    let handled = Handled::default();
    handled.by(&worker);
    Handled::default().by(&publisher);
    publisher.start().await.unwrap();
    worker.start().await.unwrap();
    publisher.dispatcher().pause();
    let id = tokio::time::timeout(Duration::from_secs(20), publisher.publish("order", &1).into_future());
    let id = id.await.expect("told within a second or two").unwrap();
    assert_eq!(handled.until(1).await, [id]);
    publisher.shutdown().await.unwrap();
    worker.shutdown().await.unwrap();
}

#[tokio::test]
async fn crash_suspects_of_other_processes_run_exclusively() {
    let schema = schema();
    let options = PostgresOptions {
        schema: schema.name().into(),
        poll_interval: Duration::from_millis(100),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(schema.url(), options).await.unwrap();
    let bus = EventBus::builder().on(Arc::new(store)).await.unwrap();
    // An exclusive run has no other run between its start and its end.
    let (present, handled_beside) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counter, seen) = (Arc::clone(&present), Arc::clone(&handled_beside));
    bus.subscribe("*", move |event: Event| {
        let (counter, seen) = (Arc::clone(&counter), Arc::clone(&seen));
        async move {
            let others = counter.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let others = others.max(counter.fetch_sub(1, Ordering::SeqCst) - 1);
            seen.lock().unwrap().push((event.id(), others));
            Ok::<_, BoxError>(())
        }
    })
    .name("all")
    .register()
    .unwrap();
    let suspect = bus.publish("order.created", &1).delay(Duration::from_secs(3600)).enqueue().await.unwrap();
    let (own, connection) = tokio_postgres::connect(schema.url(), NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let taken_over = format!(
        "UPDATE {}.event SET status = -1, ready_at = -1, due_at = created_at, crashes = 2",
        schema.name()
    );
    bus.start().await.unwrap();
    assert_eq!(own.execute(&taken_over, &[]).await.unwrap(), 1);
    let began = std::time::Instant::now();
    while !handled_beside.lock().unwrap().iter().any(|(id, _)| *id == suspect) {
        assert!(began.elapsed() < Duration::from_secs(20), "it is run though nobody starts");
        bus.publish("order.created", &2).enqueue().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let others =
        handled_beside.lock().unwrap().iter().find(|(id, _)| *id == suspect).map(|(_, others)| *others);
    assert_eq!(others, Some(0));
    bus.publish("order.created", &3).await.unwrap();
    bus.shutdown().await.unwrap();
}
