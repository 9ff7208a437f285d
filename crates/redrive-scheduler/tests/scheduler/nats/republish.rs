//! Republication and review on NATS.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use redrive_scheduler::{
    Delivery, Publication, PublishError, Receipt, RetryMessage, Transport, TransportFuture, TransportState,
    header, task_id,
};

use super::scene::{Scene, id, text, transport};
use crate::world::{Database, TIMEOUT, message, unique};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_is_republished_to_its_subject() {
    for database in Database::each() {
        let scene = Scene::on(database).await;
        let subject = unique("orders");
        let mut orders = scene.stream(&[&subject]).await;
        scene.fails(&message("m-1", &subject)).await;
        let seen = orders.next().await;
        assert_eq!(&seen.payload[..], b"{\"order\":\"m-1\"}");
        assert_eq!(
            (id(&seen), text(&seen, header::RETRY_COUNT), text(&seen, header::MAX_RETRIES)),
            ("m-1".into(), "1".into(), "3".into())
        );
        assert_eq!(text(&seen, header::TASK), task_id("m-1", &subject, 0).to_string());
        assert_eq!(text(&seen, "Content-Type"), "", "the envelope's type is dropped");

        let mut headers = HeaderMap::new();
        headers.insert("Content-Type", "application/json");
        headers.insert(header::CONTENT_TYPE, "application/vnd.order+json");
        headers.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let json = message("m-2", &subject).to_json();
        scene.send(&scene.settings.retry_queue, json.as_bytes(), headers).await;
        let seen = orders.next().await;
        assert_eq!(
            (id(&seen), text(&seen, "Content-Type")),
            ("m-2".into(), "application/vnd.order+json".into())
        );
        assert!(text(&seen, "traceparent").starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
        scene.until_over().await;
        scene.until_acked().await;
        assert_eq!(orders.count().await, 2);
        scene.end(&[&orders]).await;
    }
}

/// A consumer forwards a failed message with its headers and one that names its subject.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_message_is_republished_whole_until_it_is_reviewed() {
    for database in Database::each() {
        let scene = Scene::on(database).await;
        let subject = unique("orders");
        let mut orders = scene.stream(&[&subject]).await;
        let mut headers = HeaderMap::new();
        headers.append("Customer", "anna");
        headers.append("Customer", "bert");
        headers.insert("Content-Type", "application/json");
        headers.insert("Nats-Msg-Id", "order-7");
        headers.insert("Nats-Rollup", "sub");
        // Headers that the server interprets are not forwarded.
        let mut sent = headers.clone();
        for count in 1..=3 {
            let mut failed = HeaderMap::new();
            for (name, values) in sent.iter() {
                let obeyed = AsRef::<str>::as_ref(name) == "Nats-Rollup";
                values
                    .iter()
                    .filter(|_| !obeyed)
                    .for_each(|value| failed.append(name.clone(), value.clone()));
            }
            failed.insert(header::ORIGINAL_QUEUE, subject.as_str());
            failed.insert(header::ERROR_REASON, "timed out");
            scene.send(&scene.settings.retry_queue, b"{\"order\":7}", failed).await;
            let seen = orders.next().await;
            assert_eq!(&seen.payload[..], b"{\"order\":7}");
            assert_eq!((id(&seen), text(&seen, header::RETRY_COUNT)), ("order-7".into(), count.to_string()));
            assert_eq!(text(&seen, "Content-Type"), "application/json");
            let customers: Vec<_> = seen.headers.get_all("Customer").map(|value| value.as_str()).collect();
            assert_eq!(customers, ["anna", "bert"]);
            sent = seen.headers;
        }
        sent.insert(header::ORIGINAL_QUEUE, subject.as_str());
        scene.send(&scene.settings.retry_queue, b"{\"order\":7}", sent).await;
        let review = scene.review_inbox().await.json().await;
        assert_eq!(
            (&review["reason"], &review["message_id"]),
            (&"retries_exhausted".into(), &"order-7".into())
        );
        assert_eq!(review["original_queue"], subject.as_str());
        assert_eq!(review["history"].as_array().unwrap().len(), 4);
        scene.until_over().await;
        assert_eq!(orders.count().await, 3);
        scene.end(&[&orders]).await;
    }
}

/// A stream drops duplicate ids on all subjects, also if review and orders share it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_from_review_is_not_dropped_as_a_duplicate() {
    let settings = crate::world::settings();
    let mut nats = super::scene::nats(&super::scene::shared(), &settings);
    let subject = unique("orders");
    nats.review_stream = unique("BOTH");
    let client = async_nats::connect(&nats.url).await.unwrap();
    let both = async_nats::jetstream::stream::Config {
        name: nats.review_stream.clone(),
        subjects: vec![subject.clone(), settings.review_queue.clone()],
        allow_direct: true,
        ..Default::default()
    };
    async_nats::jetstream::new(client).create_stream(both).await.unwrap();
    let scene = Scene::at(Database::file(), settings, nats).await;
    let mut inbox = scene.review_inbox().await;
    scene.fails(&RetryMessage { retry_count: 3, ..message("m", &subject) }).await;
    let shown = inbox.next().await;
    assert_eq!(shown.subject.as_str(), scene.settings.review_queue);
    assert_eq!(
        (
            text(&shown, header::REVIEW_REASON),
            text(&shown, header::ORIGINAL_QUEUE),
            text(&shown, header::TYPE)
        ),
        ("retries_exhausted".into(), subject.clone(), "ReviewMessage".into())
    );
    scene
        .until("the message is in review", |metrics| metrics.reviewed.contains_key("retries_exhausted"))
        .await;
    scene.until_over().await;
    scene.scheduler.review().retry(task_id("m", &subject, 3), "anna", None).await.unwrap();
    let seen = inbox.next().await;
    assert_eq!((seen.subject.as_str(), id(&seen)), (subject.as_str(), "m".to_owned()));
    assert_eq!(text(&seen, header::RETRY_COUNT), "4");
    // It fails again and returns to review.
    scene.fails(&RetryMessage { retry_count: 4, ..message("m", &subject) }).await;
    assert_eq!(inbox.next().await.subject.as_str(), scene.settings.review_queue);
    scene.end(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_nats_message_is_reviewed_with_its_bytes() {
    let scene = Scene::on(Database::file()).await;
    let mut review = scene.review_inbox().await;
    let of = |content_type: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("Content-Type", content_type);
        headers
    };
    let retry = &scene.settings.retry_queue;
    scene.send(retry, &[0xff, 1], of("application/x-protobuf")).await;
    let seen = review.json().await;
    assert_eq!((&seen["reason"], &seen["payload"]["base64"]), (&"undecodable".into(), &"/wE=".into()));
    scene.send(retry, b"{\"order\":7}", of("application/json")).await;
    assert_eq!(review.json().await["reason"], "undecodable", "no header names its subject");
    // A review message is not a failed message, although it names a subject.
    let mut headers = of("application/json");
    headers.insert(header::TYPE, "ReviewMessage");
    headers.insert(header::ORIGINAL_QUEUE, "orders");
    scene.send(retry, b"{}", headers).await;
    assert_eq!(review.json().await["reason"], "undecodable");
    scene.until_acked().await;
    let subject = unique("orders");
    let mut orders = scene.stream(&[&subject]).await;
    scene.until_over().await;
    let task = seen["task"].as_str().unwrap().parse().unwrap();
    scene.scheduler.review().retry(task, "anna", Some(subject.clone())).await.unwrap();
    assert_eq!(&orders.next().await.payload[..], [0xff, 1]);
    scene.end(&[&orders]).await;
}

/// A transport that never acks.
#[derive(Debug)]
struct Silent(Arc<dyn Transport>);

impl Transport for Silent {
    fn receive(&self, max: usize) -> TransportFuture<'_, Vec<Delivery>> {
        self.0.receive(max)
    }
    fn ack(&self, _: Vec<Receipt>) -> TransportFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }
    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>> {
        self.0.publish(publication)
    }
    fn ready(&self) -> TransportFuture<'_, ()> {
        self.0.ready()
    }
    fn state(&self) -> TransportState {
        self.0.state()
    }
    fn stop_receiving(&self) {
        self.0.stop_receiving();
    }
    fn close(&self) -> TransportFuture<'_, ()> {
        self.0.close()
    }
}

/// The stream identifies messages, so even a redelivery of a republished message is recognised.
#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_is_one_task() {
    for database in Database::each() {
        let mut scene = Scene::on(database).await;
        scene.scheduler.shutdown().await.unwrap();
        scene.start(Arc::new(Silent(transport(&scene.nats)))).await;
        let subject = unique("orders");
        let mut orders = scene.stream(&[&subject]).await;
        scene.fails(&message("m", &subject)).await;
        let mut plain = HeaderMap::new();
        plain.insert(header::ORIGINAL_QUEUE, subject.as_str());
        scene.send(&scene.settings.retry_queue, b"without an id", plain).await;
        for _ in 0..2 {
            orders.next().await;
        }
        scene.until_over().await;
        assert_eq!(scene.left().await, 2);
        // Nacked at shutdown; the next scheduler receives them.
        scene.restart().await;
        let metrics = scene.until("both are recognised", |metrics| metrics.duplicates == 2).await;
        assert_eq!((metrics.received, metrics.uncounted), (2, 0));
        scene.until_acked().await;
        scene.until_over().await;
        assert_eq!(orders.count().await, 2);
        // Equal content in another message is a new failure, which its sender did not count.
        scene.fails(&message("m", &subject)).await;
        assert_eq!(text(&orders.next().await, header::RETRY_COUNT), "2");
        scene.end(&[&orders]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unacked_messages_are_not_delivered_to_another_consumer() {
    let scene = Scene::on(Database::file()).await;
    scene.scheduler.shutdown().await.unwrap();
    scene.fails(&message("m", "orders")).await;
    let nats = redrive_scheduler::NatsSettings { ack_wait: Duration::from_millis(500), ..scene.nats.clone() };
    let (first, second) = (transport(&nats), transport(&nats));
    let held = tokio::time::timeout(TIMEOUT, async {
        tokio::select! {
            held = first.receive(10) => (held, &second),
            held = second.receive(10) => (held, &first),
        }
    });
    let (held, other) = held.await.unwrap();
    assert_eq!((held.len(), held[0].redelivered), (1, false));
    let longer = Duration::from_secs(2);
    assert!(tokio::time::timeout(longer, other.receive(10)).await.is_err(), "four times the ack deadline");
    for transport in [&first, &second] {
        if !Arc::ptr_eq(transport, other) {
            transport.close().await;
        }
    }
    let again = tokio::time::timeout(TIMEOUT, other.receive(10)).await.unwrap();
    assert_eq!((again.len(), again[0].redelivered, &again[0].identity), (1, true, &held[0].identity));
    assert!(other.ack(vec![again[0].receipt]).await);
    assert_eq!(scene.left().await, 0);
    other.close().await;
    scene.end(&[]).await;
}
