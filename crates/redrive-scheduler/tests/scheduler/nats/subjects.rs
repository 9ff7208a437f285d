//! Subjects that no stream takes, streams that are not as expected, and what a stream does not take.

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use redrive_scheduler::{
    HeaderValue, NatsSettings, Properties, Publication, PublishError, RetryMessage, Settings, Transport,
    header,
};

use super::scene::{Scene, id, nats, shared, text, transport};
use crate::world::{LONGEST, Place, message, settings, unique};

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
async fn a_subject_that_no_stream_takes_is_tried_again_and_then_reviewed_with_the_reason() {
    let scene = Scene::on(Place::file()).await;
    let subject = unique("nowhere");
    scene.fails(&message("m", &subject)).await;
    let review = scene.review_inbox().await.json().await;
    assert_eq!(review["reason"], "unroutable");
    let why = review["why"].as_str().unwrap();
    assert!(why.contains(&subject) && why.contains("no stream takes this subject"), "{why}");
    let metrics = scene.until_over().await;
    assert_eq!(metrics.returned, 5);
    // A stream takes it meanwhile, and a person sends it back.
    let mut late = scene.stream(&[&subject]).await;
    let task = review["task"].as_str().unwrap().parse().unwrap();
    scene.scheduler.review().retry(task, "anna", None).await.unwrap();
    assert_eq!(id(&late.next().await), "m");
    scene.end(&[&late]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_a_stream_takes_meanwhile_gets_its_message() {
    let settings = Settings { unroutable_attempts: 1000, ..settings() };
    let scene = Scene::with(Place::file(), settings, &shared()).await;
    let subject = unique("late");
    scene.fails(&message("m", &subject)).await;
    scene.until("there is none", |metrics| metrics.returned >= 2).await;
    let mut late = scene.stream(&[&subject]).await;
    let seen = late.next().await;
    assert_eq!((id(&seen), text(&seen, header::RETRY_COUNT)), ("m".into(), "1".into()));
    scene.end(&[&late]).await;
}

/// The server says nothing then, because somebody might answer.
#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_listens_without_a_stream_is_no_stream() {
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
        matches!(&outcome, Err(PublishError::Unroutable { why, .. }) if why.contains("listens")),
        "{outcome:?}"
    );
    transport.close().await;
}

/// Whether an answer was lost or not: what has the same id is one message in the stream.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_again_is_one_message() {
    let scene = Scene::on(Place::file()).await;
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
async fn what_a_server_or_a_stream_does_not_take_is_refused() {
    let scene = Scene::on(Place::file()).await;
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
    // So a person sees it, and the stream it was to delete is still there.
    scene.fails(&message("m", &format!("$JS.API.STREAM.DELETE.{small}"))).await;
    let review = scene.review_inbox().await.json().await;
    assert_eq!((&review["reason"], &review["message_id"]), (&"refused".into(), &"m".into()));
    scene.context.delete_stream(&small).await.unwrap();
    scene.end(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_there_is_used_as_it_is() {
    let settings = settings();
    let nats = nats(&shared(), &settings);
    let client = async_nats::connect(shared()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let subject = unique("orders");
    let name = unique("EVERYTHING");
    // Under another name, with other limits, and with subjects that are not for the scheduler.
    let config = Config {
        name: name.clone(),
        subjects: vec![settings.retry_queue.clone(), subject.clone()],
        retention: RetentionPolicy::Limits,
        max_messages: 1000,
        allow_direct: true,
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    let scene = Scene::at(Place::file(), settings, nats).await;
    scene.fails(&message("m", &subject)).await;
    let mut orders = super::scene::Inbox::of(&context, &name).await;
    assert_eq!(orders.next().await.subject.as_str(), scene.settings.retry_queue);
    assert_eq!(id(&orders.next().await), "m");
    assert!(context.get_stream(&scene.nats.stream).await.is_err(), "none was made");
    let metrics = scene.until_over().await;
    assert_eq!(metrics.received, 1);
    scene.end(&[&orders]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_consumers_that_are_deleted_are_made_anew() {
    let scene = Scene::on(Place::file()).await;
    let subject = unique("orders");
    let mut orders = scene.stream(&[&subject]).await;
    let consumer = scene.nats.consumer.clone();
    let stream = scene.context.get_stream(&scene.nats.stream).await.unwrap();
    stream.delete_consumer(&consumer).await.unwrap();
    scene.fails(&message("m-1", &subject)).await;
    assert_eq!(id(&orders.next().await), "m-1");
    scene.until_accepted().await;
    scene.context.delete_stream(&scene.nats.stream).await.unwrap();
    let is_there = async {
        while scene.context.get_stream(&scene.nats.stream).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONGEST, is_there).await.unwrap();
    scene.fails(&message("m-2", &subject)).await;
    assert_eq!(id(&orders.next().await), "m-2");
    scene.context.delete_stream(&scene.nats.review_stream).await.unwrap();
    scene.fails(&RetryMessage { retry_count: 3, ..message("m-3", &subject) }).await;
    scene.until("it is in review", |metrics| metrics.reviewed.contains_key("retries_exhausted")).await;
    assert_eq!(scene.review_inbox().await.json().await["message_id"], "m-3");
    scene.end(&[&orders]).await;
}
