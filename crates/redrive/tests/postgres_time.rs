//! On PostgreSQL the database's clock decides due times and leases, independent of the clock of the bus.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use redrive::events::EventStatus;
use redrive::retry::{BoxError, Clock, Jitter, RetryOverride, RetryPolicy, VirtualTime};
use redrive::store::{PostgresOptions, PostgresStore};
use redrive::{Event, EventBus, Snooze};
use redrive_retry::Timestamp;
use redrive_servers::Schema;
use tokio::sync::{Notify, mpsc};

const AHEAD: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_databases_clock_decides_what_is_due() {
    let server = redrive_servers::Postgres::shared_url().unwrap();
    let schema = format!("t{}", SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos());
    let joint = if server.contains('?') { '&' } else { '?' };
    let address = format!("{server}{joint}schema={schema}");
    // The bus creates the schema; then its clock is set.
    EventBus::open(&address).await.unwrap().shutdown().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let ahead = format!(
        "CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
         $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {} $$",
        AHEAD.as_millis()
    );
    client.batch_execute(&ahead).await.unwrap();

    let bus = EventBus::open(&address).await.unwrap();
    let (seen, mut handled) = mpsc::unbounded_channel();
    bus.subscribe("order.*", move |event: Event| {
        let seen = seen.clone();
        async move { seen.send(event.event_type().to_string()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    client.batch_execute(&format!("SELECT {schema}.publish('order.created', '1')")).await.unwrap();
    let soon = |next| tokio::time::timeout(Duration::from_secs(20), next);
    assert_eq!(soon(handled.recv()).await.unwrap().as_deref(), Some("order.created"), "due by its own clock");
    let id = bus.publish("order.paid", &1).await.unwrap();
    assert_eq!(handled.recv().await.as_deref(), Some("order.paid"));
    let created = bus.store().event(id).await.unwrap().created_at;
    let machine = Timestamp::from(SystemTime::now());
    assert!(created.since(machine) > AHEAD / 2, "published at {created}, by the machine's clock {machine}");
    bus.shutdown().await.unwrap();
    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_the_machines_clock_moves_no_delivery() {
    for step_ms in [-7_200_000, 7_200_000] {
        let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
        let ahead_ms = Arc::new(AtomicI64::new(0));
        let options = PostgresOptions {
            schema: schema.name().into(),
            clock: Clock::with_offset(Arc::clone(&ahead_ms)),
            ..PostgresOptions::default()
        };
        let store = Arc::new(PostgresStore::open(schema.url(), options).await.unwrap());
        let policy = RetryPolicy::builder().base_delay(Duration::from_secs(2)).jitter(Jitter::None).build();
        let bus = EventBus::builder().policy(policy.unwrap()).on(store).await.unwrap();
        let (seen, mut calls) = mpsc::unbounded_channel();
        bus.subscribe("order.*", move |event: Event| {
            let _ = seen.send((event.event_type().to_string(), Instant::now()));
            let fails = event.attempt() == 1 && event.event_type().as_str() == "order.created";
            async move { if fails { Err("no") } else { Ok(()) } }
        })
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus.publish("order.created", &1).enqueue().await.unwrap();
        let mut next = async || tokio::time::timeout(Duration::from_secs(20), calls.recv()).await;
        let (_, first) = next().await.unwrap().unwrap();
        ahead_ms.store(step_ms, Ordering::Relaxed);
        // Published by the stepped machine, and due at once all the same.
        bus.publish("order.paid", &1).enqueue().await.unwrap();
        assert_eq!(next().await.expect("not late").unwrap().0, "order.paid", "a step of {step_ms} ms");
        let (again, second) = next().await.expect("not late").unwrap();
        assert_eq!(again, "order.created");
        assert!(second - first > Duration::from_secs(1), "not early after a step of {step_ms} ms");
        bus.shutdown().await.unwrap();
    }
}

/// Also the promotion of a standby whose clock is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_of_the_databases_clock_delays_no_retry() {
    let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
    let (bus, _) = open(&schema, "one", Clock::system()).await;
    let (seen, mut calls) = mpsc::unbounded_channel();
    let is_first = AtomicI64::new(0);
    bus.subscribe("order.*", move |event: Event| {
        let event_type = event.event_type().to_string();
        let fails = event.attempt() == 1 && event_type == "order.failed";
        let snoozes = event_type == "order.snoozed" && is_first.fetch_add(1, Ordering::Relaxed) == 0;
        let _ = seen.send(event_type);
        async move {
            match (fails, snoozes) {
                (true, _) => Err(BoxError::from("no")),
                (_, true) => Err(Snooze::new(Duration::from_secs(3)).into()),
                _ => Ok(()),
            }
        }
    })
    .retry(RetryOverride::new().base_delay_ms(3000))
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let mut next = async |secs| tokio::time::timeout(Duration::from_secs(secs), calls.recv()).await;
    for event_type in ["order.failed", "order.snoozed"] {
        bus.publish(event_type, &1).enqueue().await.unwrap();
        assert_eq!(next(20).await.unwrap().as_deref(), Some(event_type));
    }
    let scheduled =
        bus.publish("order.scheduled", &1).due_at((SystemTime::now() + Duration::from_secs(60)).into());
    let scheduled = scheduled.enqueue().await.unwrap();
    let due_at = bus.store().event(scheduled).await.unwrap().due_at;
    let (client, connection) = tokio_postgres::connect(schema.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let behind = format!(
        "CREATE OR REPLACE FUNCTION {}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
         $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 7200000 $$",
        schema.name()
    );
    client.batch_execute(&behind).await.unwrap();
    let mut again = [next(10).await, next(10).await].map(|next| next.expect("not two hours late").unwrap());
    again.sort();
    assert_eq!(again, ["order.failed", "order.snoozed"]);
    bus.publish("order.new", &1).enqueue().await.unwrap();
    assert_eq!(next(10).await.expect("due at once").as_deref(), Some("order.new"));
    assert_eq!(bus.store().event(scheduled).await.unwrap().due_at, due_at, "a date stays a date");
    bus.shutdown().await.unwrap();
}

/// Process with this name and clock, and a lease of two seconds.
async fn open(schema: &Schema, instance: &str, clock: Clock) -> (EventBus, Arc<PostgresStore>) {
    let options = PostgresOptions {
        schema: schema.name().into(),
        instance: instance.into(),
        lease: Duration::from_secs(2),
        clock: clock.clone(),
        ..PostgresOptions::default()
    };
    let store = Arc::new(PostgresStore::open(schema.url(), options).await.unwrap());
    (EventBus::builder().clock(clock).on(Arc::clone(&store) as _).await.unwrap(), store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_a_frozen_clock_keeps_its_lease() {
    let schema = Schema::new().unwrap_or_else(|missing| panic!("{missing}"));
    let time = VirtualTime::starting_at(SystemTime::now().into());
    let (still, store) = open(&schema, "still", time.clock()).await;
    let (began, mut is_running) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let permits = Arc::clone(&go_on);
    still
        .subscribe("order", move |_: Event| {
            let (began, permits) = (began.clone(), Arc::clone(&permits));
            async move {
                began.send(())?;
                permits.notified().await;
                Ok::<_, BoxError>(())
            }
        })
        .register()
        .unwrap();
    still.start().await.unwrap();
    let id = still.publish("order", &1).enqueue().await.unwrap();
    is_running.recv().await.unwrap();
    let (other, _) = open(&schema, "other", Clock::system()).await;
    other.start().await.unwrap();
    // Three leases, plus the poll interval of a new leader.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(7) {
        let shown = other.store().event(id).await.unwrap();
        assert_eq!((shown.status, shown.retry_count), (EventStatus::Processing, 0), "it is in good hands");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(store.leads().await.unwrap(), "it has led from the beginning, and leads on");
    go_on.notify_one();
    while other.store().event(id).await.unwrap().status != EventStatus::Done {
        assert!(watched.elapsed() < Duration::from_secs(30), "its end counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.shutdown().await.unwrap();
    still.shutdown().await.unwrap();
}
