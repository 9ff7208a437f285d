//! What is delivered again, because the broker did not hear that it is stored; and what is published again, because nobody heard that
//! it was.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redrive_scheduler::{RetryMessage, Scheduler, Settings, header};
use redrive_servers::RabbitMq;

use crate::faulty::Faulty;
use crate::world::{Client, Place, World, message, now_ms, rabbit, settings, shared_broker, unique};

/// A world whose transport can fail.
async fn faulty(place: Place, broker: String) -> (World, std::sync::Arc<Faulty>) {
    faulty_with(settings(), place, broker).await
}

async fn faulty_with(settings: Settings, place: Place, broker: String) -> (World, std::sync::Arc<Faulty>) {
    let client = Client::connect(&broker, &settings).await;
    let transport = Faulty::new(rabbit(&settings, &broker));
    let scheduler =
        Scheduler::start(settings.clone(), place.address(), std::sync::Arc::clone(&transport) as _)
            .await
            .unwrap();
    let world = World { settings, broker, place, client, scheduler };
    world.until("it consumes", |metrics| metrics.transport.consuming && metrics.transport.publishing).await;
    (world, transport)
}

/// It was stored, it was even republished; then it is delivered again.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_accepted_is_one_task_also_when_it_is_over() {
    let broker = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    for place in Place::each() {
        let (mut world, transport) = faulty(place, broker.url()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        transport.forgets_to_accept.store(true, Ordering::SeqCst);
        world.fails(&message("m", &queue)).await;
        world.client.next(&queue).await;
        world.until("it is over", |metrics| metrics.queue_depth() == Some(0)).await;
        transport.forgets_to_accept.store(false, Ordering::SeqCst);
        broker.close_connections().unwrap();
        world.client = Client::connect(&world.broker, &world.settings).await;
        world.until("it is delivered again", |metrics| metrics.received == 2).await;
        let metrics = world.until("it is accepted", |metrics| metrics.duplicates == 1).await;
        assert_eq!((metrics.uncounted, metrics.queue_depth()), (0, Some(0)));
        assert!(world.client.look(&queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// The process dies between storing and accepting.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_it_is_delivered_again_to_another_process_is_one_task() {
    for place in Place::each() {
        let (mut world, transport) = faulty(place, shared_broker()).await;
        let queue = unique("orders");
        world.client.declare(&queue).await;
        transport.forgets_to_accept.store(true, Ordering::SeqCst);
        let due = now_ms() + 2000;
        world.fails(&RetryMessage { next_retry_at_ms: due, ..message("m", &queue) }).await;
        world.until("it is stored", |metrics| metrics.queue_depth() == Some(1)).await;
        drop(transport);
        world.restart().await;
        world.until("it is delivered again", |metrics| metrics.duplicates == 1).await;
        assert_eq!(world.client.next(&queue).await.text(header::MESSAGE_ID), "m");
        world.until("it is over", |metrics| metrics.queue_depth() == Some(0)).await;
        assert!(world.client.look(&queue).await.is_none());
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// The process dies between storing and accepting, and the task is over before anybody else sees the delivery again. That could be
/// another failure of a sender that does not count: it is rather tried twice than lost, with the same id.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_when_it_is_delivered_again_is_rather_tried_twice_than_lost() {
    let (mut world, transport) = faulty(Place::file(), shared_broker()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    transport.forgets_to_accept.store(true, Ordering::SeqCst);
    transport.says_it_accepted.store(true, Ordering::SeqCst);
    world.fails(&message("m", &queue)).await;
    let first = world.client.next(&queue).await;
    world.until("it is over", |metrics| metrics.queue_depth() == Some(0)).await;
    drop(transport);
    world.restart().await;
    let second = world.client.next(&queue).await;
    assert_eq!([first.retry_count(), second.retry_count()], [1, 1], "that is not held against it");
    assert_eq!(first.text(header::MESSAGE_ID), second.text(header::MESSAGE_ID));
    assert_eq!(first.properties.message_id(), second.properties.message_id());
    let metrics = world.until("it is over", |metrics| metrics.queue_depth() == Some(0)).await;
    assert_eq!((metrics.copies, metrics.uncounted, metrics.duplicates), (1, 0, 0));
    // Its sender goes on to count, and a person sees all of it.
    world.fails(&RetryMessage { retry_count: 3, ..message("m", &queue) }).await;
    let history = world.reviewed().await["history"].as_array().unwrap().clone();
    let counts: Vec<_> = history.iter().map(|entry| entry["retry_count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [0, 0, 3]);
    world.client.delete(&queue).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_or_may_not_be_published_is_published_again_with_the_same_id() {
    for place in Place::each() {
        let (world, transport) = faulty(place, shared_broker()).await;
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
        assert!(same(|seen| format!("{:?}", seen.properties)), "nothing else tells them apart");
        let metrics = world.until("it is over", |metrics| metrics.queue_depth() == Some(0)).await;
        assert_eq!(
            (metrics.unknown, metrics.queues[&queue].succeeded, metrics.queues[&queue].failed),
            (2, 1, 2)
        );
        // A dead review message is no other: it comes again with the same id, too.
        transport.lost_confirmations.store(1, Ordering::SeqCst);
        world.fails(&RetryMessage { retry_count: 3, ..message("e", &queue) }).await;
        let reviews = [world.reviewed().await, world.reviewed().await];
        assert_eq!(reviews[0]["task"], reviews[1]["task"]);
        let shown = world.scheduler.review().list(Default::default()).await.unwrap();
        assert!(shown.len() <= 1);
        world.until("it is over", |metrics| metrics.queue_depth() == Some(0)).await;
        let list = world.scheduler.review().list(Default::default()).await.unwrap();
        assert_eq!(list.len(), 1);
        let detail = world.scheduler.review().show(list[0].id).await.unwrap();
        assert!(detail.attempts.len() >= 2, "what came of each attempt is kept: {:#?}", detail.attempts);
        world.client.delete(&queue).await;
        world.end().await;
    }
}

/// A quorum queue without a majority takes what comes and confirms nothing. The others have nothing to do with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_confirms_nothing_does_not_hold_up_the_others() {
    for place in Place::each() {
        let few = Settings { in_flight: 8, ..settings() };
        let (world, transport) = faulty_with(few, place, shared_broker()).await;
        let (silent, healthy) = (unique("silent"), unique("orders"));
        world.client.declare(&healthy).await;
        *transport.silent.lock().unwrap() = Some(silent.clone());
        for n in 0..50 {
            world.fails(&message(&format!("s-{n}"), &silent)).await;
        }
        world.until("the queue is known to be silent", |metrics| metrics.put_off > 0).await;
        for n in 0..50 {
            world.fails(&message(&format!("m-{n}"), &healthy)).await;
        }
        for _ in 0..50 {
            world.client.next(&healthy).await;
        }
        assert_eq!(world.scheduler.counted().unknown, 0, "all that was sent there is still waited for");
        world.client.delete(&healthy).await;
        world.end().await;
    }
}

/// A broker closes the channel of whoever does not acknowledge in time. That is an outage like any other.
#[tokio::test(flavor = "multi_thread")]
async fn who_acknowledges_too_late_for_the_broker_loses_nothing() {
    let broker = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    for setting in ["consumer_timeout, 500", "channel_tick_interval, 300"] {
        broker.control(&["eval", &format!("application:set_env(rabbit, {setting}).")]).unwrap();
    }
    let (world, transport) = faulty(Place::file(), broker.url()).await;
    let queue = unique("orders");
    world.client.declare(&queue).await;
    transport.forgets_to_accept.store(true, Ordering::SeqCst);
    world.fails(&RetryMessage { next_retry_at_ms: now_ms() + 60_000, ..message("m", &queue) }).await;
    world.until("it is forgotten", |_| transport.forgotten.load(Ordering::SeqCst) == 1).await;
    transport.forgets_to_accept.store(false, Ordering::SeqCst);
    let metrics = world.until("it is delivered again", |metrics| metrics.duplicates >= 1).await;
    assert_eq!((metrics.queue_depth(), metrics.uncounted, metrics.copies), (Some(1), 0, 0));
    world.end().await;
}

/// A publication whose confirmation never comes is told so in time, and holds nobody up.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_that_does_not_come_is_not_waited_for_for_ever() {
    use redrive_scheduler::{Publication, PublishError, RabbitSettings, Transport as _};
    let broker = RabbitMq::start().unwrap_or_else(|missing| panic!("{missing}"));
    let settings = settings();
    let mut rabbit = RabbitSettings::new(broker.url(), &settings);
    rabbit.confirm_timeout = Duration::from_millis(300);
    let rabbit = redrive_scheduler::Rabbit::connect(rabbit).unwrap();
    rabbit.ready().await;
    // The node stands still: the connection is there, and nothing is answered.
    let node = broker.control(&["eval", "os:getpid()."]).unwrap();
    let pid: String = node.chars().filter(char::is_ascii_digit).collect();
    let signal = |signal: &str| {
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    signal("-STOP");
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
    assert_eq!(rabbit.publish(publication).await, Ok(()), "the same connection goes on");
    rabbit.close().await;
}
