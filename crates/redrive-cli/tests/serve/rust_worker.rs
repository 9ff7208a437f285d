//! Workers of the Rust client on real servers.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_api::client::Client;
use redrive_api::events::{EventStatus, PublishEvent};
use redrive_api::retry::Retry;
use redrive_api::subscriptions::{Extend, LeasedEvent, Nack, NackOutcome, Pull, PutSubscription};
use redrive_api::worker::{CancelReason, ClassifyError as _, Context, HandlerResult, Snooze, WorkerHandle};
use serde_json::json;
use uuid::Uuid;

use crate::world::{TestDatabase, World};

/// Every database, one after another.
fn databases() -> [TestDatabase; 2] {
    [TestDatabase::sqlite(), TestDatabase::postgres()]
}

/// A subscription to all orders whose retries come soon.
fn billing() -> PutSubscription {
    let retry =
        Retry { max_attempts: Some(3), base_delay_ms: Some(10), max_delay_ms: Some(20), ..Retry::default() };
    PutSubscription { retry: Some(retry), ..PutSubscription::new(["order.*"]) }
}

/// The result of a handler that succeeded.
fn done() -> HandlerResult {
    Ok(())
}

async fn publish(client: &Client, count: usize) -> Vec<Uuid> {
    let events: Vec<PublishEvent> =
        (0..count).map(|n| PublishEvent::json("order.created", &json!({ "n": n })).unwrap()).collect();
    client.events().publish_batch(&events).await.unwrap().data.iter().map(|event| event.id).collect()
}

async fn status(client: &Client, id: Uuid) -> EventStatus {
    client.events().get(id).await.unwrap().status
}

/// Polls until `holds` returns true.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_done(client: &Client, ids: &[Uuid]) {
    for id in ids {
        until("the event is done", async || status(client, *id).await == EventStatus::Done).await;
    }
}

/// How often each event was handled.
type Seen = Arc<Mutex<HashMap<Uuid, usize>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_handles_every_event_with_bounded_concurrency() {
    for database in databases() {
        let world = database.serve(&[]);
        let client = world.repeating_client();
        let (seen, running, most) =
            (Seen::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, now, peak) = (Arc::clone(&seen), Arc::clone(&running), Arc::clone(&most));
        let worker = client.worker("billing", move |event: LeasedEvent, _| {
            let (count, now, peak) = (Arc::clone(&count), Arc::clone(&now), Arc::clone(&peak));
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                *count.lock().unwrap().entry(event.id).or_default() += 1;
                done()
            }
        });
        let handle = worker.create(billing()).concurrency(8).start();
        handle.ready().await;
        let ids = publish(&client, 500).await;
        until("all are handled", async || handle.stats().handled == 500).await;
        let stats = handle.stop().await.unwrap();
        assert_eq!((stats.handled, stats.failed, stats.lost, stats.running), (500, 0, 0, 0));
        assert!((2..=8).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.len(), 500);
        assert!(seen.values().all(|times| *times == 1));
        until_done(&client, &ids[..5]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_run_longer_than_its_lease() {
    for database in databases() {
        let world = database.serve(&[]);
        let client = world.repeating_client();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let worker = client.worker("billing", move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::time::sleep(Duration::from_secs(4)).await;
                done()
            }
        });
        let handle = worker.create(billing()).lease(Duration::from_secs(1)).start();
        handle.ready().await;
        let ids = publish(&client, 3).await;
        until("all are handled", async || handle.stats().handled == 3).await;
        let stats = handle.stop().await.unwrap();
        assert_eq!((stats.lost, calls.load(Ordering::SeqCst)), (0, 3), "no event came twice");
        until_done(&client, &ids).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_retried_snoozed_and_dead_lettered() {
    async fn handle(event: LeasedEvent, context: Context) -> HandlerResult {
        assert_eq!(context.subscription(), "billing");
        match (event.event_type.as_str(), event.attempt) {
            ("order.permanent", _) => Err("no such customer".permanent().into()),
            ("order.panic", 1) => panic!("a bug"),
            ("order.later", 1) => Err("busy".retry_after(Duration::from_millis(300)).into()),
            ("order.hopeless", attempt) => Err(format!("no ink, attempt {attempt}").into()),
            ("order.slow", 1) => std::future::pending().await,
            _ => Ok(()),
        }
    }
    for database in databases() {
        let world = database.serve(&[]);
        let client = world.repeating_client();
        let worker =
            client.worker("billing", handle).create(billing()).timeout(Duration::from_millis(300)).start();
        let snoozed = Seen::default();
        let count = Arc::clone(&snoozed);
        let snoozing = client.worker("snoozing", move |event: LeasedEvent, _| {
            let times = *count.lock().unwrap().entry(event.id).and_modify(|times| *times += 1).or_insert(1);
            assert_eq!(event.attempt, 1, "a snooze charges no attempt");
            async move { if times < 5 { Err(Snooze::new(Duration::from_millis(5))) } else { Ok(()) } }
        });
        let snoozing = snoozing.patterns(["later.*"]).start();
        worker.ready().await;
        snoozing.ready().await;
        let mut ids = HashMap::new();
        for kind in
            ["order.permanent", "order.panic", "order.later", "order.hopeless", "order.slow", "later.x"]
        {
            let event = PublishEvent::json(kind, &1).unwrap();
            ids.insert(kind, client.events().publish(&event).await.unwrap().id);
        }
        until_done(&client, &["order.panic", "order.later", "order.slow", "later.x"].map(|kind| ids[kind]))
            .await;
        for (kind, reason, errors) in [
            ("order.permanent", "permanent", vec!["no such customer"]),
            (
                "order.hopeless",
                "attempts_exhausted",
                vec!["no ink, attempt 1", "no ink, attempt 2", "no ink, attempt 3"],
            ),
        ] {
            until("it is dead", async || status(&client, ids[kind]).await == EventStatus::Dlq).await;
            let dead = client.dlq().get(ids[kind]).await.unwrap().data.remove(0);
            assert_eq!(
                (dead.reason.as_str(), dead.errors),
                (reason, errors.into_iter().map(str::to_owned).collect())
            );
        }
        for (kind, error) in [
            ("order.panic", "panicked: a bug"),
            ("order.later", "busy"),
            ("order.slow", "no result within 300ms"),
        ] {
            let event = client.events().get(ids[kind]).await.unwrap();
            assert_eq!(event.errors, [error]);
            assert_eq!(event.retry_count, 1);
        }
        let stats = worker.stop().await.unwrap();
        assert_eq!((stats.handled, stats.failed), (3, 7));
        let stats = snoozing.stop().await.unwrap();
        assert_eq!((stats.handled, stats.failed, stats.snoozed), (1, 0, 4));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_handlers_and_gives_back_what_has_not_ended() {
    for database in databases() {
        let world = database.serve(&[]);
        let client = world.repeating_client();
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&reasons);
        let worker = client.worker("billing", move |event: LeasedEvent, context: Context| {
            let told = Arc::clone(&told);
            async move {
                let n = event.json::<serde_json::Value>()?["n"].as_u64();
                if n == Some(0) {
                    tokio::time::sleep(Duration::from_millis(500)).await; // ends while the stop waits
                    return done();
                }
                tokio::spawn(async move {
                    let reason = context.cancelled().await;
                    told.lock().unwrap().push(reason);
                });
                std::future::pending::<HandlerResult>().await
            }
        });
        let handle = worker.create(billing()).concurrency(3).stop_timeout(Duration::from_secs(2)).start();
        handle.ready().await;
        let ids = publish(&client, 6).await;
        until("three run", async || handle.stats().running == 3).await;
        let began = Instant::now();
        let stats = handle.stop().await.unwrap();
        assert!((2..10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        assert!(stats.handled <= 1 && stats.snoozed >= 2, "{stats:?}");
        assert!(reasons.lock().unwrap().iter().all(|reason| *reason == CancelReason::Stopping));
        // Everything that was not handled can be pulled at once, without an attempt charged.
        let left = 6 - usize::try_from(stats.handled).unwrap();
        let mut got = HashSet::new();
        while got.len() < left {
            let pull = Pull { wait_ms: Some(10_000), ..Pull::default() };
            let pulled = client.subscriptions().pull("billing", &pull).await.unwrap().data;
            assert!(!pulled.is_empty(), "{got:?} of {ids:?}");
            assert!(pulled.iter().all(|event| event.attempt == 1));
            got.extend(pulled.iter().map(|event| event.id));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_results_are_refused_and_counted_as_lost() {
    for database in databases() {
        let world = database.serve(&[]);
        let client = world.repeating_client();
        let other = client.clone();
        // Each lease is ended behind the worker's back, as by an operator or after a long pause of the process.
        let worker = client.worker("billing", move |event: LeasedEvent, _| {
            let other = other.clone();
            async move {
                if event.attempt == 1 {
                    let nack = Nack {
                        leases: vec![event.lease],
                        outcome: None,
                        delay_ms: None,
                        reason: Some("x".to_owned()),
                    };
                    other.subscriptions().nack("billing", &nack).await?;
                }
                done()
            }
        });
        let handle = worker.create(billing()).start();
        handle.ready().await;
        let ids = publish(&client, 4).await;
        until_done(&client, &ids).await;
        until("all are counted", async || handle.stats().handled == 4).await;
        let stats = handle.stop().await.unwrap();
        assert_eq!((stats.handled, stats.lost), (4, 4));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_is_dropped_when_its_lease_is_lost() {
    for database in databases() {
        let world = database.serve(&[]);
        let client = world.repeating_client();
        let other = client.clone();
        let worker = client.worker("billing", move |event: LeasedEvent, _| {
            let other = other.clone();
            async move {
                if event.attempt == 1 {
                    let (leases, outcome) = (vec![event.lease], Some(NackOutcome::Failed));
                    let nack = Nack { leases, outcome, delay_ms: None, reason: None };
                    other.subscriptions().nack("billing", &nack).await?;
                    std::future::pending::<()>().await;
                }
                done()
            }
        });
        let handle = worker.create(billing()).lease(Duration::from_millis(600)).start();
        handle.ready().await;
        let ids = publish(&client, 2).await;
        until_done(&client, &ids).await;
        until("none runs", async || handle.stats().running == 0).await;
        let stats = handle.stop().await.unwrap();
        assert_eq!((stats.handled, stats.lost), (2, 2));
    }
}

/// A port that is free now, for a server that is started again at the same address.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_lost_when_the_server_is_killed_under_load() {
    const EVENTS: usize = 400;
    for database in databases() {
        let database = Arc::new(database);
        let address = free_address().to_string();
        let start = || World::start(Arc::clone(&database), &["--listen", &address]);
        let mut world = start();
        let client = world.repeating_client();
        let seen = Seen::default();
        let count = Arc::clone(&seen);
        let worker = client.worker("billing", move |event: LeasedEvent, _| {
            let count = Arc::clone(&count);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                *count.lock().unwrap().entry(event.id).or_default() += 1;
                done()
            }
        });
        let retry = Retry {
            max_attempts: Some(20),
            base_delay_ms: Some(10),
            max_delay_ms: Some(50),
            ..Retry::default()
        };
        let patient = PutSubscription { retry: Some(retry), ..billing() };
        let handle: WorkerHandle =
            worker.create(patient).lease(Duration::from_secs(3)).concurrency(16).start();
        handle.ready().await;
        let publisher = client.clone();
        let publishing = tokio::spawn(async move {
            let mut ids = Vec::new();
            for n in 0..EVENTS {
                let event = PublishEvent::json("order.created", &json!({ "n": n })).unwrap();
                ids.push(publisher.events().publish(&event).await.unwrap().id);
            }
            ids
        });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            drop(world.kill());
            tokio::time::sleep(Duration::from_millis(200)).await;
            world = start();
        }
        let ids = publishing.await.unwrap();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), EVENTS, "every publish stored one event");
        until("all were handled", async || {
            let seen = seen.lock().unwrap();
            ids.iter().all(|id| seen.contains_key(id))
        })
        .await;
        until_done(&client, &ids).await;
        let stats = handle.stop().await.unwrap();
        assert_eq!(stats.running, 0);
        let stored = client.stats().await.unwrap();
        assert_eq!((stored.dlq, stored.done), (0, EVENTS as u64), "no publish was stored twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_ends_when_its_subscription_is_missing_or_its_token_is_revoked() {
    let world = TestDatabase::sqlite().serve(&[]);
    let client = world.repeating_client();
    let worker = client.worker("nobody", |_, _| async { done() });
    assert_eq!(worker.start().join().await.unwrap_err().code().as_str(), "not_found");

    let (admin, _) = world.database.token("admin", &[]);
    let (consumer, id) = world.database.token("consume", &[]);
    let url = format!("http://{}", world.address);
    let client = |token: &str| Client::http(url.parse().unwrap(), Some(token)).unwrap();
    client(&admin).subscriptions().put("billing", &billing()).await.unwrap();
    let worker = client(&consumer).worker("billing", |_, _| async { done() });
    let handle = worker.wait(Duration::from_millis(100)).start();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!handle.is_finished());
    client(&admin).tokens().revoke(&id).await.unwrap();
    let error = handle.join().await.unwrap_err();
    assert_eq!(error.code().as_str(), "invalid_token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_on_two_servers_share_the_events_and_their_leases() {
    let database = Arc::new(TestDatabase::postgres());
    let worlds = [World::start(Arc::clone(&database), &[]), World::start(Arc::clone(&database), &[])];
    let clients = worlds.each_ref().map(World::repeating_client);
    clients[0].subscriptions().put("billing", &billing()).await.unwrap();
    let ids = publish(&clients[0], 100).await;
    // A lease of one server is extended and acked at the other one.
    let pull = Pull { max: Some(1), wait_ms: Some(10_000), lease_ms: Some(60_000) };
    let pulled = clients[0].subscriptions().pull("billing", &pull).await.unwrap().data.remove(0);
    let leases = vec![pulled.lease];
    let extend = Extend { leases: leases.clone(), lease_ms: 60_000 };
    assert_eq!(clients[1].subscriptions().extend("billing", &extend).await.unwrap().done, 1);
    let ack = redrive_api::subscriptions::Ack { leases };
    assert_eq!(clients[1].subscriptions().ack("billing", &ack).await.unwrap().done, 1);
    let handles = clients
        .each_ref()
        .map(|client| client.worker("billing", |_, _| async { done() }).concurrency(4).start());
    until_done(&clients[1], &ids).await;
    let mut handled = 0;
    for handle in handles {
        handled += handle.stop().await.unwrap().handled;
    }
    assert_eq!(handled, 99);
}
