//! Server crashes, shutdowns and several schedulers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redrive_scheduler::{RetryMessage, Scheduler, Transport as _};

use super::scene::{Inbox, Scene, id, nats, transport};
use crate::world::{Database, message, now_ms, settings, unique};

/// Receives `count` messages, each once.
async fn each_once(inbox: &mut Inbox, count: usize) {
    let mut seen = BTreeSet::new();
    for _ in 0..count {
        assert!(seen.insert(id(&inbox.next().await)), "no message is repeated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tasks_are_published_after_a_server_crash() {
    const MESSAGES: usize = 50;
    let server = redrive_servers::Nats::start().unwrap_or_else(|missing| panic!("{missing}"));
    let scene = Scene::with(Database::file(), settings(), &server.url()).await;
    let subject = unique("orders");
    let mut orders = scene.stream(&[&subject]).await;
    let due = now_ms() + 1500;
    for n in 0..MESSAGES {
        scene.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &subject) }).await;
    }
    scene.until("all are stored", |metrics| metrics.queue_depth() == Some(MESSAGES as u64)).await;
    server.crash();
    scene
        .until("the outage is detected", |metrics| {
            !metrics.transport.consuming && !metrics.transport.publishing
        })
        .await;
    scene.until("they are due", |_| now_ms() > due).await;
    server.resume().unwrap();
    each_once(&mut orders, MESSAGES).await;
    let metrics = scene.until_over().await;
    assert!(metrics.transport.connects >= 2);
    assert_eq!(orders.count().await, MESSAGES as u64);
    scene.fails(&message("after", &subject)).await;
    assert_eq!(id(&orders.next().await), "after");
    scene.end(&[&orders]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_crash_during_consumption_loses_no_message() {
    const MESSAGES: usize = 600;
    let server = redrive_servers::Nats::start().unwrap_or_else(|missing| panic!("{missing}"));
    for database in Database::each() {
        let settings = redrive_scheduler::Settings { prefetch: 20, ..settings() };
        let mut scene = Scene::with(database, settings, &server.url()).await;
        let subject = unique("orders");
        let mut orders = scene.stream(&[&subject]).await;
        scene.scheduler.shutdown().await.unwrap();
        for n in 0..MESSAGES {
            scene.fails(&message(&format!("m-{n}"), &subject)).await;
        }
        scene.start(transport(&scene.nats)).await;
        for part in [1, 2] {
            scene.until("some messages are received", |metrics| metrics.received > 100 * part).await;
            server.crash();
            server.resume().unwrap();
        }
        each_once(&mut orders, MESSAGES).await;
        scene.until_over().await;
        scene.until_acked().await;
        assert_eq!(orders.count().await, MESSAGES as u64, "duplicates were dropped");
        scene.end(&[&orders]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_on_one_consumer_republish_each_message_once() {
    const MESSAGES: usize = 300;
    let settings = redrive_scheduler::Settings { prefetch: 20, ..settings() };
    let scene = Scene::with(Database::schema(), settings, &super::scene::shared()).await;
    let second = Scheduler::start(scene.settings.clone(), scene.database.address(), transport(&scene.nats))
        .await
        .unwrap();
    let began = Instant::now();
    while !second.counted().transport.consuming {
        assert!(began.elapsed() < crate::world::TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let subject = unique("orders");
    let mut orders = scene.stream(&[&subject]).await;
    let due = now_ms() + 1000;
    for n in 0..MESSAGES {
        scene.fails(&RetryMessage { next_retry_at_ms: due, ..message(&format!("m-{n}"), &subject) }).await;
    }
    each_once(&mut orders, MESSAGES).await;
    scene.until_over().await;
    scene.until_acked().await;
    assert_eq!(orders.count().await, MESSAGES as u64);
    let received = [scene.scheduler.counted().received, second.counted().received];
    assert_eq!(received[0] + received[1], MESSAGES as u64);
    assert!(received.iter().all(|received| *received > 0), "both receive: {received:?}");
    second.shutdown().await.unwrap();
    scene.end(&[&orders]).await;
}

/// Shuts down under load, several times; each message is republished once.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_shutdowns_lose_and_repeat_no_message() {
    const MESSAGES: usize = 200;
    for database in Database::each() {
        let mut scene = Scene::on(database).await;
        let subject = unique("orders");
        let mut orders = scene.stream(&[&subject]).await;
        for round in 0..4 {
            for n in 0..MESSAGES / 4 {
                scene.fails(&message(&format!("m-{round}-{n}"), &subject)).await;
            }
            scene.restart().await;
        }
        each_once(&mut orders, MESSAGES).await;
        scene.until_over().await;
        scene.until_acked().await;
        assert_eq!(orders.count().await, MESSAGES as u64);
        scene.end(&[&orders]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_works_while_the_server_is_unreachable() {
    let settings = settings();
    let database = Database::file();
    // No server listens there.
    let away = transport(&nats("nats://127.0.0.1:9", &settings));
    let scheduler = Scheduler::start(settings, database.address(), away).await.unwrap();
    let metrics = scheduler.metrics().await;
    assert!(!metrics.transport.consuming && !metrics.transport.publishing);
    let began = Instant::now();
    scheduler.shutdown().await.unwrap();
    scheduler.shutdown().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn valid_credentials_connect_and_invalid_ones_keep_retrying() {
    for (arguments, right, wrong) in [
        (&["--user", "anna", "--pass", "p@ss"][..], "anna:p%40ss", "anna:word"),
        (&["--auth", "t0ken"][..], "t0ken", "t0k"),
    ] {
        let server =
            redrive_servers::Nats::start_with(arguments).unwrap_or_else(|missing| panic!("{missing}"));
        let of = |user: &str| server.url().replace("nats://", &format!("nats://{user}@"));
        let refused = transport(&nats(&of(wrong), &settings()));
        let accepted = transport(&nats(&of(right), &settings()));
        tokio::time::timeout(crate::world::TIMEOUT, accepted.ready()).await.unwrap();
        assert!(accepted.state().publishing && !refused.state().publishing);
        assert!(!format!("{accepted:?}{refused:?}").contains("t0k"));
        refused.close().await;
        accepted.close().await;
    }
}
