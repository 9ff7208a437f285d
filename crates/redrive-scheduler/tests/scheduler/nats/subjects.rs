//! Missing streams, existing streams and refused messages.

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use redrive_scheduler::{
    HeaderValue, NatsSettings, Properties, Publication, PublishError, RetryMessage, Settings, Transport,
    header,
};

use super::scene::{Scene, id, nats, shared, text, transport};
use crate::world::{Database, TIMEOUT, message, settings, unique};

fn publication(once: &str, subject: &str, body: Vec<u8>) -> Publication {
    let headers = [(header::TASK.to_owned(), HeaderValue::text("t"))].into();
    Publication {
        id: "t".into(),
        once: once.into(),
        queue: subject.into(),
        body,
        properties: Properties { headers, ..Properties::default() },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_stream_is_retried_and_then_reviewed() {
    let scene = Scene::on(Database::file()).await;
    let subject = unique("nowhere");
    scene.fails(&message("m", &subject)).await;
    let review = scene.review_inbox().await.json().await;
    assert_eq!(review["reason"], "unroutable");
    let why = review["why"].as_str().unwrap();
    assert!(why.contains(&subject) && why.contains("no stream has this subject"), "{why}");
    let metrics = scene.until_over().await;
    assert_eq!(metrics.returned, 5);
    // A stream is created, and the task is released.
    let mut late = scene.stream(&[&subject]).await;
    let task = review["task"].as_str().unwrap().parse().unwrap();
    scene.scheduler.review().retry(task, "anna", None).await.unwrap();
    assert_eq!(id(&late.next().await), "m");
    scene.end(&[&late]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_created_in_the_meantime_gets_its_message() {
    let settings = Settings { unroutable_attempts: 1000, ..settings() };
    let scene = Scene::with(Database::file(), settings, &shared()).await;
    let subject = unique("late");
    scene.fails(&message("m", &subject)).await;
    scene.until("no stream exists", |metrics| metrics.returned >= 2).await;
    let mut late = scene.stream(&[&subject]).await;
    let seen = late.next().await;
    assert_eq!((id(&seen), text(&seen, header::RETRY_COUNT)), ("m".into(), "1".into()));
    scene.end(&[&late]).await;
}

/// The server does not report the missing stream, because the subscriber might answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_subscriber_is_not_a_stream() {
    let settings = settings();
    let nats =
        NatsSettings { confirm_timeout: std::time::Duration::from_millis(300), ..nats(&shared(), &settings) };
    let transport = transport(&nats);
    let client = async_nats::connect(shared()).await.unwrap();
    let subject = unique("heard");
    let _listening = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let outcome = transport.publish(publication("a", &subject, Vec::new())).await;
    assert!(
        matches!(&outcome, Err(PublishError::Unroutable { why, .. }) if why.contains("subscribers")),
        "{outcome:?}"
    );
    transport.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_publications_are_one_message_in_the_stream() {
    let scene = Scene::on(Database::file()).await;
    let subject = unique("orders");
    let mut orders = scene.stream(&[&subject]).await;
    let transport = transport(&scene.nats);
    for once in ["a", "a", "b", "a", "b"] {
        transport.publish(publication(once, &subject, once.into())).await.unwrap();
    }
    assert_eq!(orders.count().await, 2);
    assert_eq!(text(&orders.next().await, "Nats-Msg-Id"), "a");
    transport.close().await;
    assert!(matches!(
        transport.publish(publication("c", &subject, Vec::new())).await,
        Err(PublishError::Unknown { .. })
    ));
    scene.end(&[&orders]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_above_the_limits_are_refused() {
    let scene = Scene::on(Database::file()).await;
    let subject = unique("orders");
    let small = unique("SMALL");
    let config = Config {
        name: small.clone(),
        subjects: vec![subject.clone()],
        max_message_size: 1000,
        ..Config::default()
    };
    scene.context.create_stream(config).await.unwrap();
    let transport = transport(&scene.nats);
    for (subject, body) in [
        (subject.as_str(), vec![b'x'; 2000]),
        (subject.as_str(), vec![b'x'; 2 << 20]),
        ("$JS.API.STREAM.DELETE.ORDERS", Vec::new()),
        ("orders.*", Vec::new()),
        ("two words", Vec::new()),
    ] {
        let outcome = transport.publish(publication("a", subject, body)).await;
        assert!(matches!(outcome, Err(PublishError::Refused { .. })), "{subject}: {outcome:?}");
    }
    transport.close().await;
    // The message is in review, and the stream that it would have deleted still exists.
    scene.fails(&message("m", &format!("$JS.API.STREAM.DELETE.{small}"))).await;
    let review = scene.review_inbox().await.json().await;
    assert_eq!((&review["reason"], &review["message_id"]), (&"refused".into(), &"m".into()));
    scene.context.delete_stream(&small).await.unwrap();
    scene.end(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_stream_is_used_as_it_is() {
    let settings = settings();
    let nats = nats(&shared(), &settings);
    let client = async_nats::connect(shared()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let subject = unique("orders");
    let name = unique("EVERYTHING");
    // With another name, other limits and further subjects.
    let config = Config {
        name: name.clone(),
        subjects: vec![settings.retry_queue.clone(), subject.clone()],
        retention: RetentionPolicy::Limits,
        max_messages: 1000,
        allow_direct: true,
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    let scene = Scene::at(Database::file(), settings, nats).await;
    scene.fails(&message("m", &subject)).await;
    let mut orders = super::scene::Inbox::of(&context, &name).await;
    assert_eq!(orders.next().await.subject.as_str(), scene.settings.retry_queue);
    assert_eq!(id(&orders.next().await), "m");
    assert!(context.get_stream(&scene.nats.stream).await.is_err(), "no stream was created");
    let metrics = scene.until_over().await;
    assert_eq!(metrics.received, 1);
    scene.end(&[&orders]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_streams_and_consumers_are_created_again() {
    let scene = Scene::on(Database::file()).await;
    let subject = unique("orders");
    let mut orders = scene.stream(&[&subject]).await;
    let consumer = scene.nats.consumer.clone();
    let stream = scene.context.get_stream(&scene.nats.stream).await.unwrap();
    stream.delete_consumer(&consumer).await.unwrap();
    scene.fails(&message("m-1", &subject)).await;
    assert_eq!(id(&orders.next().await), "m-1");
    scene.until_acked().await;
    scene.context.delete_stream(&scene.nats.stream).await.unwrap();
    let is_there = async {
        while scene.context.get_stream(&scene.nats.stream).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, is_there).await.unwrap();
    scene.fails(&message("m-2", &subject)).await;
    assert_eq!(id(&orders.next().await), "m-2");
    scene.context.delete_stream(&scene.nats.review_stream).await.unwrap();
    scene.fails(&RetryMessage { retry_count: 3, ..message("m-3", &subject) }).await;
    scene
        .until("the message is in review", |metrics| metrics.reviewed.contains_key("retries_exhausted"))
        .await;
    assert_eq!(scene.review_inbox().await.json().await["message_id"], "m-3");
    scene.end(&[&orders]).await;
}
