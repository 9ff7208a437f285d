//! Outages of brokers and databases.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_scheduler::{RetryMessage, Settings, header};
use redrive_servers::{Postgres, RabbitMq};

use crate::world::{Client, Database, World, message, now_ms, settings, unique};

fn broker() -> RabbitMq {
    RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"))
}

/// Counts the copies of each message, once all messages have arrived.
async fn arrived(client: &Client, queue: &str, messages: usize) -> BTreeMap<String, usize> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    while seen.len() < messages {
        *seen.entry(client.next(queue).await.text(header::MESSAGE_ID)).or_default() += 1;
    }
    while let Some(more) = client.look(queue).await {
        *seen.entry(more.text(header::MESSAGE_ID)).or_default() += 1;
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_crash_loses_no_message() {
    const MESSAGES: usize = 60;
    let broker = broker();
    for database in Database::each() {
        let mut world = World::at(database, settings(), broker.url()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        // A declared queue is on the broker's disk only after a sync.
        broker.control(&["eval", "mnesia:sync_log()."]).unwrap();
        // All become due during the outage; some may still be in the retry queue.
        let due = now_ms() + 700;
        for n in 0..MESSAGES {
            world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
        }
        broker.crash();
        world
            .until("the outage is detected", |metrics| {
                !metrics.transport.consuming && !metrics.transport.publishing
            })
            .await;
        broker.resume().unwrap();
        world.client = Client::connect(&world.broker, &world.settings).await;
        let seen = arrived(&world.client, &queue, MESSAGES).await;
        assert_eq!(seen.len(), MESSAGES);
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        let metrics =
            world.until("both connections are restored", |metrics| metrics.transport.connects >= 4).await;
        assert_eq!(metrics.reviewed.len(), 0);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_lose_no_message() {
    const MESSAGES: usize = 200;
    let broker = broker();
    let mut world = World::at(Database::schema(), settings(), broker.url()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    for n in 0..MESSAGES {
        world.fails(&message(&format!("m-{n}"), &queue)).await;
        if n % 100 == 50 {
            broker.close_connections().unwrap();
            world.client = Client::connect(&world.broker, &world.settings).await;
        }
    }
    let seen = arrived(&world.client, &queue, MESSAGES).await;
    assert_eq!(seen.len(), MESSAGES);
    world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
    world.until("both connections are restored", |metrics| metrics.transport.connects >= 4).await;
    world.client.delete(&queue).await;
    world.end().await;
}

/// A broker that is short of memory blocks publishers, not consumers.
#[tokio::test(flavor = "multi_thread")]
async fn under_a_memory_alarm_publishing_waits_and_intake_continues() {
    const MESSAGES: usize = 20;
    let broker = broker();
    let world = World::at(Database::file(), settings(), broker.url()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    // The broker signals the alarm on a connection after its first message.
    world.fails(&message("first", &queue)).await;
    world.client.next(&queue).await;
    // Late enough for the alarm to be raised first, on a busy machine.
    let due = now_ms() + 12_000;
    for n in 0..MESSAGES {
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
    }
    broker.memory_alarm(true).unwrap();
    world.until("it is blocked", |metrics| metrics.transport.blocked && !metrics.transport.publishing).await;
    let metrics = world.until("all are stored", |metrics| metrics.received == MESSAGES as u64 + 1).await;
    assert!(metrics.transport.consuming);
    world.until("all deliveries are acked", |metrics| metrics.transport.unacked == 0).await;
    while now_ms() < due + 500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(world.client.look(&queue).await.is_none(), "no message is published");
    assert_eq!(world.scheduler.counted().queues[&queue].failed, 0, "no attempt is charged");
    broker.memory_alarm(false).unwrap();
    let seen = arrived(&world.client, &queue, MESSAGES).await;
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_crash_loses_no_message() {
    const MESSAGES: usize = 100;
    let server = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let world = World::on(Database::Server(server.url())).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    for n in 0..MESSAGES / 2 {
        world.fails(&message(&format!("m-{n}"), &queue)).await;
    }
    server.crash().unwrap();
    for n in MESSAGES / 2..MESSAGES {
        world.fails(&message(&format!("m-{n}"), &queue)).await;
    }
    let began = std::time::Instant::now();
    while world.scheduler.counted().store_failures == 0 {
        assert!(began.elapsed() < crate::world::TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(world.scheduler.counted().transport.unacked > 0, "the broker keeps unstored messages");
    server.resume().unwrap();
    let seen = arrived(&world.client, &queue, MESSAGES).await;
    assert_eq!(seen.len(), MESSAGES);
    world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_starts_without_a_broker_and_connects_later() {
    let broker = broker();
    let settings = Settings { retry_queue: unique("retry"), review_queue: unique("review"), ..settings() };
    let database = Database::file();
    broker.crash();
    let transport = crate::world::rabbit(&settings, &broker.url());
    let scheduler =
        redrive_scheduler::Scheduler::start(settings.clone(), database.address(), transport).await.unwrap();
    broker.resume().unwrap();
    let client = Client::connect(&broker.url(), &settings).await;
    let world = World { settings, broker: broker.url(), database, client, scheduler };
    world
        .until("the scheduler is connected", |metrics| {
            metrics.transport.consuming && metrics.transport.publishing
        })
        .await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.fails(&message("m", &queue)).await;
    world.client.next(&queue).await;
    world.end().await;
}
