//! Brokers and databases that go away, and come back.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_scheduler::{RetryMessage, Settings, header};
use redrive_servers::{Postgres, RabbitMq};

use crate::world::{Client, Place, World, message, now_ms, settings, unique};

fn broker() -> RabbitMq {
    RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"))
}

/// How often each of these messages is in its queue, once all of them have come.
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
async fn a_broker_that_crashes_and_comes_back_loses_nothing() {
    const MESSAGES: usize = 60;
    let broker = broker();
    for place in Place::each() {
        let mut world = World::at(place, settings(), broker.url()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        // A queue is not on the broker's disk when it is declared, but a moment later.
        broker.control(&["eval", "mnesia:sync_log()."]).unwrap();
        // All of them fall due while the broker is away, and some may still be in the retry queue then.
        let due = now_ms() + 700;
        for n in 0..MESSAGES {
            world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
        }
        broker.crash();
        world
            .until("it has noticed", |metrics| !metrics.transport.consuming && !metrics.transport.publishing)
            .await;
        broker.resume().unwrap();
        world.client = Client::connect(&world.broker, &world.settings).await;
        let seen = arrived(&world.client, &queue, MESSAGES).await;
        assert_eq!(seen.len(), MESSAGES);
        world.until("all is over", |metrics| metrics.queue_depth() == Some(0)).await;
        let metrics = world.until("both are connected anew", |metrics| metrics.transport.connects >= 4).await;
        assert_eq!(metrics.reviewed.len(), 0);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_lose_nothing() {
    const MESSAGES: usize = 200;
    let broker = broker();
    let mut world = World::at(Place::schema(), settings(), broker.url()).await;
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
    world.until("all is over", |metrics| metrics.queue_depth() == Some(0)).await;
    world.until("both are connected anew", |metrics| metrics.transport.connects >= 4).await;
    world.client.delete(&queue).await;
    world.end().await;
}

/// A broker that is short of memory stops whoever publishes, and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn under_a_memory_alarm_publishing_waits_and_taking_in_goes_on() {
    const MESSAGES: usize = 20;
    let broker = broker();
    let world = World::at(Place::file(), settings(), broker.url()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    // The alarm reaches a connection with its first message.
    world.fails(&message("first", &queue)).await;
    world.client.next(&queue).await;
    // The alarm must be there before their time, on however busy a machine.
    let due = now_ms() + 12_000;
    for n in 0..MESSAGES {
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &queue) }).await;
    }
    broker.memory_alarm(true).unwrap();
    world.until("it is blocked", |metrics| metrics.transport.blocked && !metrics.transport.publishing).await;
    let metrics = world.until("all are stored", |metrics| metrics.received == MESSAGES as u64 + 1).await;
    assert!(metrics.transport.consuming);
    world.until("they are accepted", |metrics| metrics.transport.unaccepted == 0).await;
    while now_ms() < due + 500 {
        tokio::time::sleep(Duration::from_millis(20)).await; // past their time, which is what is looked at
    }
    assert!(world.client.look(&queue).await.is_none(), "nothing is published");
    assert_eq!(world.scheduler.counted().queues[&queue].failed, 0, "and no attempt is used up");
    broker.memory_alarm(false).unwrap();
    let seen = arrived(&world.client, &queue, MESSAGES).await;
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_and_comes_back_loses_nothing() {
    const MESSAGES: usize = 100;
    let server = Postgres::start().unwrap_or_else(|missing| panic!("{missing}"));
    let world = World::on(Place::Server(server.url())).await;
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
        assert!(began.elapsed() < crate::world::LONGEST);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(world.scheduler.counted().transport.unaccepted > 0, "the broker keeps what is not stored");
    server.resume().unwrap();
    let seen = arrived(&world.client, &queue, MESSAGES).await;
    assert_eq!(seen.len(), MESSAGES);
    world.until("all is over", |metrics| metrics.queue_depth() == Some(0)).await;
    world.client.delete(&queue).await;
    world.end().await;
}

/// The broker is away when the scheduler starts.
#[tokio::test(flavor = "multi_thread")]
async fn it_starts_without_a_broker_and_finds_it_later() {
    let broker = broker();
    let settings = Settings { retry_queue: unique("retry"), review_queue: unique("review"), ..settings() };
    let place = Place::file();
    broker.crash();
    let transport = crate::world::rabbit(&settings, &broker.url());
    let scheduler =
        redrive_scheduler::Scheduler::start(settings.clone(), place.address(), transport).await.unwrap();
    broker.resume().unwrap();
    let client = Client::connect(&broker.url(), &settings).await;
    let world = World { settings, broker: broker.url(), place, client, scheduler };
    world.until("it consumes", |metrics| metrics.transport.consuming && metrics.transport.publishing).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    world.fails(&message("m", &queue)).await;
    world.client.next(&queue).await;
    world.end().await;
}
