//! Redeliveries after lost acks, and repeated publications after lost confirms.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redrive_scheduler::{RetryMessage, Scheduler, Settings, header};
use redrive_servers::RabbitMq;

use crate::faulty::Faulty;
use crate::world::{Client, Database, World, message, now_ms, rabbit, settings, shared_broker, unique};

/// A world with a [`Faulty`] transport.
async fn faulty(database: Database, broker: String) -> (World, std::sync::Arc<Faulty>) {
    faulty_with(settings(), database, broker).await
}

async fn faulty_with(
    settings: Settings,
    database: Database,
    broker: String,
) -> (World, std::sync::Arc<Faulty>) {
    let client = Client::connect(&broker, &settings).await;
    let transport = Faulty::new(rabbit(&settings, &broker));
    let scheduler =
        Scheduler::start(settings.clone(), database.address(), std::sync::Arc::clone(&transport) as _)
            .await
            .unwrap();
    let world = World { settings, broker, database, client, scheduler };
    world
        .until("the scheduler is connected", |metrics| {
            metrics.transport.consuming && metrics.transport.publishing
        })
        .await;
    (world, transport)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_after_a_failed_ack_is_one_task_even_when_done() {
    let broker = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    for database in Database::each() {
        let (mut world, transport) = faulty(database, broker.url()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        transport.drops_acks.store(true, Ordering::SeqCst);
        world.fails(&message("m", &queue)).await;
        world.client.next(&queue).await;
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        transport.drops_acks.store(false, Ordering::SeqCst);
        broker.close_connections().unwrap();
        world.client = Client::connect(&world.broker, &world.settings).await;
        world.until("the message is redelivered", |metrics| metrics.received == 2).await;
        let metrics = world.until("the delivery is acked", |metrics| metrics.duplicates == 1).await;
        assert_eq!((metrics.uncounted, metrics.queue_depth()), (0, Some(0)));
        assert!(world.client.look(&queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// The process crashes between storing and acking.
#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_to_another_process_is_one_task_while_it_waits() {
    for database in Database::each() {
        let (mut world, transport) = faulty(database, shared_broker()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        transport.drops_acks.store(true, Ordering::SeqCst);
        let due = now_ms() + 2000;
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
        world.until("the task is stored", |metrics| metrics.queue_depth() == Some(1)).await;
        drop(transport);
        world.restart().await;
        world.until("the message is redelivered", |metrics| metrics.duplicates == 1).await;
        assert_eq!(world.client.next(&queue).await.text(header::MESSAGE_ID), "m");
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert!(world.client.look(&queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// The process crashes between storing and acking, and the task is done before the redelivery, which may be a new failure of a sender
/// that does not count.
#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_redelivery_of_a_done_task_is_republished_again() {
    let (mut world, transport) = faulty(Database::file(), shared_broker()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    transport.drops_acks.store(true, Ordering::SeqCst);
    transport.claims_success.store(true, Ordering::SeqCst);
    world.fails(&message("m", &queue)).await;
    let first = world.client.next(&queue).await;
    world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
    drop(transport);
    world.restart().await;
    let second = world.client.next(&queue).await;
    assert_eq!([first.retry_count(), second.retry_count()], [1, 1], "the copy is not counted as a retry");
    assert_eq!(first.text(header::MESSAGE_ID), second.text(header::MESSAGE_ID));
    assert_eq!(first.properties.message_id(), second.properties.message_id());
    let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
    assert_eq!((metrics.copies, metrics.uncounted, metrics.duplicates), (1, 0, 0));
    // Later counted failures have the whole history in review.
    world.fails(&RetryMessage { retry_count: 3, ..message("m", &queue) }).await;
    let history = world.reviewed().await["history"].as_array().unwrap().clone();
    let counts: Vec<_> = history.iter().map(|entry| entry["retry_count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [0, 0, 3]);
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_with_unknown_outcome_is_repeated_with_the_same_id() {
    for database in Database::each() {
        let (world, transport) = faulty(database, shared_broker()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        transport.lost_confirmations.store(2, Ordering::SeqCst);
        world.fails(&message("m", &queue)).await;
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(world.client.next(&queue).await);
        }
        let same = |of: fn(&crate::world::Seen) -> String| seen.iter().all(|other| of(other) == of(&seen[0]));
        assert!(same(|seen| seen.text(header::TASK)) && same(|seen| seen.text(header::MESSAGE_ID)));
        assert!(same(|seen| format!("{:?}", seen.properties)), "the messages are identical");
        let metrics = world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!(
            (metrics.unknown, metrics.queues[&queue].succeeded, metrics.queues[&queue].failed),
            (2, 1, 2)
        );
        // A repeated review message has the same id as well.
        transport.lost_confirmations.store(1, Ordering::SeqCst);
        world.fails(&RetryMessage { retry_count: 3, ..message("e", &queue) }).await;
        let reviews = [world.reviewed().await, world.reviewed().await];
        assert_eq!(reviews[0]["task"], reviews[1]["task"]);
        let shown =
            world.scheduler.review().list(&Default::default(), Default::default()).await.unwrap().tasks;
        assert!(shown.len() <= 1);
        world.until("no task is open", |metrics| metrics.queue_depth() == Some(0)).await;
        let list =
            world.scheduler.review().list(&Default::default(), Default::default()).await.unwrap().tasks;
        assert_eq!(list.len(), 1);
        let detail = world.scheduler.review().show(list[0].id).await.unwrap();
        assert!(detail.attempts.len() >= 2, "attempts are recorded: {:#?}", detail.attempts);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// A quorum queue without a majority accepts messages and confirms nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_queue_does_not_block_other_queues() {
    for database in Database::each() {
        let few = Settings { in_flight: 8, ..settings() };
        let (world, transport) = faulty_with(few, database, shared_broker()).await;
        let (stalled, healthy) = (unique("stalled"), unique("orders"));
        world.client.declare(&healthy).await;
        *transport.stalled_queue.lock().unwrap() = Some(stalled.clone());
        for n in 0..50 {
            world.fails(&message(&format!("s-{n}"), &stalled)).await;
        }
        world.until("the queue is stalled", |metrics| metrics.deferred > 0).await;
        for n in 0..50 {
            world.fails(&message(&format!("m-{n}"), &healthy)).await;
        }
        for _ in 0..50 {
            world.client.next(&healthy).await;
        }
        assert_eq!(world.scheduler.counted().unknown, 0, "confirms are still awaited");
        world.client.delete(&healthy).await;
        world.end().await;
    }
}

/// The broker closes the channel of a consumer that does not ack in time.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_timeout_of_the_broker_loses_no_message() {
    let broker = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    for setting in ["consumer_timeout, 500", "channel_tick_interval, 300"] {
        broker.control(&["eval", &format!("application:set_env(rabbit, {setting}).")]).unwrap();
    }
    let (world, transport) = faulty(Database::file(), broker.url()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    transport.drops_acks.store(true, Ordering::SeqCst);
    world.fails(&RetryMessage { next_retry_at_ms: now_ms() + 60_000, ..message("m", &queue) }).await;
    world.until("an ack is dropped", |_| transport.dropped_acks.load(Ordering::SeqCst) == 1).await;
    transport.drops_acks.store(false, Ordering::SeqCst);
    let metrics = world.until("the message is redelivered", |metrics| metrics.duplicates >= 1).await;
    assert_eq!((metrics.queue_depth(), metrics.uncounted, metrics.copies), (Some(1), 0, 0));
    world.end().await;
}

/// Waits until every thread of a process is stopped.
async fn until_stopped(pid: &str) {
    let is_stopped = |task: std::fs::DirEntry| {
        // The state is behind the name, which is in brackets and may contain anything.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    let all_stopped = || {
        let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(Result::unwrap);
        tasks.all(is_stopped)
    };
    for _ in 0..1000 {
        if all_stopped() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("process {pid} does not stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_publisher_confirm_times_out() {
    use redrive_scheduler::{Publication, PublishError, RabbitSettings, Transport as _};
    let broker = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    let settings = settings();
    let mut rabbit = RabbitSettings::new(broker.url(), &settings);
    rabbit.confirm_timeout = Duration::from_millis(300);
    let rabbit = redrive_scheduler::Rabbit::connect(rabbit).unwrap();
    rabbit.ready().await;
    // The node is stopped: connected, but unresponsive.
    let node = broker.control(&["eval", "os:getpid()."]).unwrap();
    let pid: String = node.chars().filter(char::is_ascii_digit).collect();
    let signal = |signal: &str| {
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    until_stopped(&pid).await; // a signal takes effect a moment later
    let publication = Publication {
        id: "t".into(),
        once: "t".into(),
        queue: settings.review_queue.clone(),
        body: b"x".to_vec(),
        properties: redrive_scheduler::Properties::default(),
    };
    let outcome = tokio::time::timeout(Duration::from_secs(20), rabbit.publish(publication.clone())).await;
    signal("-CONT");
    let outcome = outcome.unwrap();
    assert!(matches!(outcome, Err(PublishError::Unknown { .. })), "{outcome:?}");
    assert_eq!(rabbit.publish(publication).await, Ok(()), "the connection still works");
    rabbit.close().await;
}
