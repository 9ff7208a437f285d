//! Delivery of events to endpoints, with receivers over real sockets.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod receiver;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use receiver::{Receiver, Reply, body_of, header_of};
use redrive::dlq::{DlqFilter, DlqPage};
use redrive::events::EventStatus;
use redrive::retry::{Clock, RetryOverride, RetryPolicy, VirtualTime};
use redrive::store::{SqliteOptions, SqliteStore};
use redrive::subscription::SubscriptionName;
use redrive::{EventBus, EventId, Tracking};
use redrive_webhook::{
    AttemptRecord, Client, DISABLED, Deadlines, Endpoint, EndpointPatch, EndpointStore, EndpointStoreError,
    Guard, RunningWebhookTasks, Secret, Vault, Webhooks, WebhooksError,
};

const KEY: &str = "bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU=";
const TIMEOUT: Duration = Duration::from_secs(60);

fn client() -> Client {
    let deadlines = Deadlines {
        connect: Duration::from_secs(2),
        first_byte: Duration::from_secs(2),
        total: Duration::from_secs(6),
    };
    let guard = Guard::default().allow("127.0.0.1/32".parse().unwrap());
    Client::builder().guard(guard).deadlines(deadlines).build().unwrap()
}

/// Bus and webhooks without the HTTP API.
struct Server {
    bus: EventBus,
    webhooks: Arc<Webhooks>,
    _tasks: RunningWebhookTasks,
}

impl Server {
    async fn open(path: &Path) -> Self {
        Server::open_with(path, &[KEY], Clock::system()).await
    }

    /// With the given vault keys, newest first, and clock.
    async fn open_with(path: &Path, keys: &[&str], clock: Clock) -> Self {
        let policy =
            RetryOverride::new().base_delay_ms(20).max_delay_ms(40).apply_to(&RetryPolicy::webhook());
        Server::with_policy(path, keys, clock, policy.unwrap()).await
    }

    async fn with_policy(path: &Path, keys: &[&str], clock: Clock, policy: RetryPolicy) -> Self {
        let store = SqliteStore::open(path, SqliteOptions { clock, ..SqliteOptions::default() }).unwrap();
        let builder = EventBus::builder().tracking(Tracking::PerSubscription).policy(policy);
        let bus = builder.on(Arc::new(store)).await.unwrap();
        let vault = Arc::new(Vault::new(keys.iter().copied()).unwrap());
        let endpoints = EndpointStore::new(Arc::clone(bus.store()), client(), vault);
        let (webhooks, tasks) = Webhooks::open(bus.clone(), endpoints).await.unwrap();
        bus.start().await.unwrap();
        Server { bus, webhooks, _tasks: tasks.start() }
    }

    async fn endpoint(&self, url: String, change: impl FnOnce(&mut EndpointPatch)) -> Endpoint {
        let mut patch = EndpointPatch {
            url: Some(url),
            patterns: Some(vec!["order.*".to_owned()]),
            ..EndpointPatch::default()
        };
        change(&mut patch);
        self.webhooks.create(patch, None).await.unwrap()
    }

    async fn publish(&self, n: u32) -> EventId {
        self.bus.publish("order.paid", &serde_json::json!({"n": n})).enqueue().await.unwrap()
    }

    async fn ended(&self, id: EventId) -> EventStatus {
        let mut status = EventStatus::Pending;
        until("the event is done or dead", async || {
            status = self.bus.store().event(id).await.unwrap().status;
            matches!(status, EventStatus::Done | EventStatus::Dlq)
        })
        .await;
        status
    }

    async fn dead_of(&self, endpoint: &Endpoint) -> Vec<redrive::dlq::DeadLetter> {
        let subscription = Some(name_of(endpoint));
        let filter = DlqFilter { subscription, ..DlqFilter::default() };
        self.bus.dlq().list(filter, DlqPage::default()).await.unwrap()
    }

    async fn records(&self, id: EventId) -> Vec<AttemptRecord> {
        let attempts = self.bus.store().event(id).await.unwrap().attempts;
        attempts.iter().map(|row| serde_json::from_str(&row.detail.as_ref().unwrap().0).unwrap()).collect()
    }
}

fn name_of(endpoint: &Endpoint) -> SubscriptionName {
    SubscriptionName::new(endpoint.id.as_str()).unwrap()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, looking).await.unwrap_or_else(|_| panic!("{what}"));
}

/// In real time, because the receivers are: about 15 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_policy_makes_five_attempts_after_one_two_four_and_eight_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let server = Server::with_policy(&path, &[KEY], Clock::system(), RetryPolicy::webhook()).await;
    let overloaded = Receiver::new(|_, _| Reply::new("503 Service Unavailable")).await;
    let throttling =
        Receiver::new(|n, _| Reply::new(if n == 0 { "429 Too Many Requests" } else { "204 No Content" }))
            .await;
    let recovering =
        Receiver::new(|n, _| Reply::new(if n < 2 { "503 Service Unavailable" } else { "204 No Content" }))
            .await;
    let (down, gone) = (
        server.endpoint(overloaded.url(), |_| {}).await,
        server.endpoint("http://127.0.0.1:9/".to_owned(), |_| {}).await,
    );
    let (slow, back) =
        (server.endpoint(throttling.url(), |_| {}).await, server.endpoint(recovering.url(), |_| {}).await);
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    assert_eq!(
        (overloaded.requests().len(), throttling.requests().len(), recovering.requests().len()),
        (5, 2, 3)
    );
    for endpoint in [&down, &gone] {
        let dead = server.bus.dlq().get(id).await.unwrap();
        let dead = dead.into_iter().find(|dead| dead.subscription == Some(name_of(endpoint))).unwrap();
        assert_eq!((dead.reason.as_str(), dead.errors.len(), dead.retry_count), ("attempts_exhausted", 5, 5));
        let began: Vec<i64> = dead.attempts.iter().map(|attempt| attempt.started_at.as_millis()).collect();
        let ended = dead
            .attempts
            .iter()
            .map(|attempt| attempt.started_at.as_millis() + i64::try_from(attempt.duration_ms).unwrap());
        for ((waited, delay), recorded) in began[1..]
            .iter()
            .zip(ended)
            .map(|(next, ended)| next - ended)
            .zip([1000, 2000, 4000, 8000])
            .zip(&dead.attempts)
        {
            assert!(
                (delay * 9 / 10..=delay * 11 / 10).contains(&i64::try_from(recorded.delay_ms).unwrap()),
                "{recorded:?}"
            );
            assert!(
                (delay * 9 / 10 - 5..delay * 11 / 10 + 2000).contains(&waited),
                "waited {waited} of {delay} ms"
            );
        }
        assert_eq!(dead.attempts[4].delay_ms, 0, "no attempt follows the fifth");
    }
    let event = server.bus.store().event(id).await.unwrap();
    for endpoint in [&slow, &back] {
        let delivery =
            event.deliveries.iter().find(|delivery| delivery.subscription == name_of(endpoint)).unwrap();
        assert_eq!(delivery.status, EventStatus::Done, "the receiver has recovered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_signed_sent_and_recorded_for_every_matching_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let (one, two) = (
        Receiver::new(|_, _| Reply { body: "thanks".into(), ..Reply::new("200 OK") }).await,
        Receiver::new(|n, _| Reply::new(if n == 0 { "500 Oops" } else { "204 No Content" })).await,
    );
    let endpoint = server
        .endpoint(one.url(), |patch| patch.headers = Some(vec![("X-Tenant".into(), "acme".into())]))
        .await;
    server.endpoint(two.url(), |_| {}).await;
    server.endpoint(one.url(), |patch| patch.patterns = Some(vec!["invoice.*".into()])).await;
    let id = server.publish(7).await;
    assert_eq!(server.ended(id).await, EventStatus::Done);
    let (requests, heard_by_two) = (one.requests(), two.requests());
    assert_eq!((requests.len(), heard_by_two.len()), (1, 2), "the first attempt at one endpoint failed");
    let ids: Vec<_> = heard_by_two.iter().map(|request| header_of(request, "webhook-id").unwrap()).collect();
    assert_eq!(ids, [id.to_string(), id.to_string()], "every attempt has the same id");
    assert_eq!(header_of(&requests[0], "x-tenant"), Some("acme"));
    let body: serde_json::Value = serde_json::from_str(body_of(&requests[0])).unwrap();
    assert_eq!((&body["type"], &body["data"]["n"]), (&"order.paid".into(), &7.into()));

    // Verified by the reference library for receivers.
    let secret = endpoint.secrets[0].secret.reveal();
    let verifier = standardwebhooks::Webhook::new(&secret).unwrap();
    let mut headers = hyper::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, header_of(&requests[0], name).unwrap().parse().unwrap());
    }
    verifier.verify(body_of(&requests[0]).as_bytes(), &headers).unwrap();

    let records = server.records(id).await;
    assert_eq!(records.len(), 3, "successful attempts are recorded as well");
    let of_one = records.iter().find(|record| record.url == one.url()).unwrap();
    assert_eq!((of_one.status, of_one.body.as_deref()), (Some(200), Some("thanks")));
    let statuses: Vec<_> = records
        .iter()
        .filter(|record| record.url == two.url())
        .map(|record| record.status.unwrap())
        .collect();
    assert_eq!(statuses, [500, 204]);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_survive_a_restart_and_secrets_are_encrypted_at_rest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Reply::new("200 OK")).await;
    let server = Server::open(&path).await;
    let endpoint = server
        .endpoint(receiver.url(), |patch| {
            patch.headers = Some(vec![("Authorization".into(), "Bearer s3cr3t-t0ken".into())]);
            patch.retry = Some(Some(RetryOverride::new().max_attempts(2)));
            (patch.concurrency, patch.per_second, patch.timeout_ms) = (Some(3), Some(Some(50.0)), Some(4000));
        })
        .await;
    let secret = endpoint.secrets[0].secret.reveal();
    server.bus.shutdown().await.unwrap();
    drop(server);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            !text.contains(&secret) && !text.contains("s3cr3t-t0ken"),
            "a secret is stored in plain text"
        );
    }
    let server = Server::open(&path).await;
    let again = server.webhooks.endpoints().get(&endpoint.id).await.unwrap();
    assert_eq!(again.secrets[0].secret.reveal(), secret);
    assert_eq!((again.limits, again.timeout), (endpoint.limits, Duration::from_secs(4)));
    assert_eq!(again.retry, Some(RetryOverride::new().max_attempts(2)));
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Done);
    assert_eq!(header_of(&receiver.requests()[0], "authorization"), Some("Bearer s3cr3t-t0ken"));
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_wait_while_their_endpoint_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Reply::new("204 No Content")).await;
    let server = Server::open(&path).await;
    let endpoint = server.endpoint(receiver.url(), |_| {}).await;
    server.bus.shutdown().await.unwrap();

    let server = Server::open_with(&path, &[&Vault::generate_key()], Clock::system()).await;
    let id = server.publish(1).await;
    let kept = server.bus.store().event(id).await.unwrap();
    assert_eq!(kept.deliveries.len(), 1, "the event has a delivery: {kept:?}");
    until("the delivery waits", async || server.bus.dispatcher().in_flight() == 0).await;
    assert!(!server.bus.store().depth().await.unwrap().is_idle());
    let (listed, _) = server.webhooks.endpoints().list(None, 10).await.unwrap();
    assert!(listed.is_empty(), "the list works and leaves it out");
    assert!(matches!(
        server.webhooks.endpoints().get(&endpoint.id).await,
        Err(EndpointStoreError::Sealed { .. })
    ));
    server.bus.shutdown().await.unwrap();
    assert!(receiver.requests().is_empty());

    let server = Server::open(&path).await;
    assert_eq!(server.ended(id).await, EventStatus::Done);
    assert_eq!(receiver.requests().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_an_unreadable_endpoint_dead_letters_its_deliveries() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Reply::new("204 No Content")).await;
    let server = Server::open(&path).await;
    let endpoint = server.endpoint(receiver.url(), |_| {}).await;
    let (removed, _) = (server.endpoint(receiver.url(), |_| {}).await, server.publish(0).await);
    server.webhooks.remove(&removed.id).await.unwrap();
    server.bus.shutdown().await.unwrap();

    let server = Server::open_with(&path, &[&Vault::generate_key()], Clock::system()).await;
    let id = server.publish(1).await;
    let refused = server.webhooks.update(&endpoint.id, None, EndpointPatch::default()).await.unwrap_err();
    assert!(refused.to_string().contains("only be removed"), "{refused}");
    server.webhooks.remove(&endpoint.id).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    let dead = server.dead_of(&endpoint).await;
    assert!(dead[0].errors[0].contains("was removed"), "{:?}", dead[0].errors);
    assert!(matches!(
        server.webhooks.endpoints().get(&endpoint.id).await,
        Err(EndpointStoreError::NotFound { .. })
    ));
    // An endpoint removed earlier needs no key either.
    assert!(matches!(
        server.webhooks.endpoints().get(&removed.id).await,
        Err(EndpointStoreError::NotFound { .. })
    ));
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_starts_rotate_the_vault_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Reply::new("204 No Content")).await;
    let server = Server::open(&path).await;
    let token = |patch: &mut EndpointPatch| {
        patch.headers = Some(vec![("Authorization".into(), "Bearer t0ken".into())]);
    };
    let endpoint = server.endpoint(receiver.url(), token).await;
    server.bus.shutdown().await.unwrap();

    let new = Vault::generate_key();
    for keys in [&[new.as_str(), KEY][..], &[new.as_str()]] {
        let server = Server::open_with(&path, keys, Clock::system()).await;
        let id = server.publish(1).await;
        assert_eq!(server.ended(id).await, EventStatus::Done);
        let found = server.webhooks.endpoints().get(&endpoint.id).await.unwrap();
        assert_eq!(found.secrets[0].secret.reveal(), endpoint.secrets[0].secret.reveal());
        assert_eq!(found.version, 2, "re-encrypted once, not at every start");
        server.bus.shutdown().await.unwrap();
    }
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| header_of(request, "authorization") == Some("Bearer t0ken")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_days_of_failures_disable_an_endpoint_and_enabling_it_starts_over() {
    let folder = tempfile::tempdir().unwrap();
    let time = VirtualTime::new();
    let server = Server::open_with(&folder.path().join("events.db"), &[KEY], time.clock()).await;
    let broken = Receiver::new(|_, _| Reply::new("500 Oops")).await;
    let watcher = Receiver::new(|_, _| Reply::new("200 OK")).await;
    let once = |patch: &mut EndpointPatch| patch.retry = Some(Some(RetryOverride::new().max_attempts(1)));
    let endpoint = server.endpoint(format!("{}?token=s3cr3t", broken.url()), once).await;
    server.endpoint(watcher.url(), |patch| patch.patterns = Some(vec!["redrive.*".into()])).await;
    let fails = async |times: u32| {
        for n in 0..times {
            let before = broken.requests().len();
            let id = server.publish(n).await;
            assert_eq!(server.ended(id).await, EventStatus::Dlq);
            assert_eq!(broken.requests().len(), before + 1, "the endpoint still receives requests");
            tokio::time::sleep(Duration::from_millis(50)).await; // for the background task to record it
            time.advance(Duration::from_secs(61));
        }
    };
    let is_enabled = async || server.webhooks.endpoints().get(&endpoint.id).await.unwrap().is_enabled();
    fails(7).await;
    assert!(is_enabled().await, "minutes of failures do not disable it");
    time.advance(Duration::from_secs(5 * 24 * 3600));
    server.publish(8).await;
    until("the endpoint is disabled", async || !is_enabled().await).await;
    until("the event about it is delivered", async || watcher.requests().len() == 1).await;
    let notice = body_of(&watcher.requests()[0]).to_owned();
    assert!(notice.contains(DISABLED) && notice.contains(r#""reason":"failing""#), "{notice}");
    assert!(!notice.contains("s3cr3t"), "the event must not contain the token: {notice}");

    let enabled_at = time.now();
    let patch = EndpointPatch { enabled: Some(true), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, patch).await.unwrap();
    fails(7).await;
    assert!(is_enabled().await, "earlier failures no longer count");
    let since = server.webhooks.failing_since(&endpoint.id).await.unwrap().unwrap();
    assert!(since >= enabled_at, "{since} before {enabled_at}");

    // Another URL starts over as well.
    time.advance(Duration::from_secs(6 * 24 * 3600));
    let other = Receiver::new(|_, _| Reply::new("500 Oops")).await;
    let patch = EndpointPatch { url: Some(other.url()), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, patch).await.unwrap();
    assert_eq!(server.webhooks.failing_since(&endpoint.id).await.unwrap(), None);
    let id = server.publish(9).await;
    server.ended(id).await;
    assert!(is_enabled().await);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flapping_receiver_gets_every_event() {
    let folder = tempfile::tempdir().unwrap();
    let time = VirtualTime::new();
    let server = Server::open_with(&folder.path().join("events.db"), &[KEY], time.clock()).await;
    // A minute up, a minute down: long enough to open the circuit each time.
    let clock = time.clock();
    let is_up = move || clock.now().as_millis() / 60_000 % 2 == 0;
    let flapping = Receiver::new(move |_, _| Reply::new(if is_up() { "200 OK" } else { "503 Down" })).await;
    let patient =
        |patch: &mut EndpointPatch| patch.retry = Some(Some(RetryOverride::new().max_attempts(100)));
    server.endpoint(flapping.url(), patient).await;
    let mut ids = Vec::new();
    for n in 0..150 {
        ids.push(server.publish(n).await);
        time.advance(Duration::from_secs(2));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    until("all events have arrived", async || {
        time.advance(Duration::from_secs(2));
        server.bus.store().depth().await.unwrap().is_idle()
    })
    .await;
    for id in ids {
        assert_eq!(server.bus.store().event(id).await.unwrap().status, EventStatus::Done);
        let statuses: Vec<_> = server.records(id).await.iter().map(|record| record.status.unwrap()).collect();
        let (last, before) = statuses.split_last().unwrap();
        assert!(*last == 200 && before.iter().all(|status| *status == 503), "{statuses:?}");
    }
    assert!(flapping.requests().len() > 150, "the receiver was down in between");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_survives_an_unrelated_change_of_the_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let busy = Reply { headers: "Retry-After: 600\r\n".into(), ..Reply::new("429 Too Many Requests") };
    let throttled = Receiver::new(move |_, _| busy.clone()).await;
    let well = Receiver::new(|_, _| Reply::new("204 No Content")).await;
    let endpoint = server.endpoint(throttled.url(), |_| {}).await;
    let throttled_until = || {
        let (now, all) = (server.bus.store().clock().now(), server.bus.subscriptions());
        all.iter().find(|one| *one.name() == name_of(&endpoint)).unwrap().throttled_until(now)
    };
    server.publish(1).await;
    until("the endpoint is throttled", async || throttled_until().is_some()).await;
    let asked = throttled_until();
    let patch = EndpointPatch { description: Some("the shop".into()), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, patch).await.unwrap();
    assert_eq!(throttled_until(), asked, "a new description does not end the throttling");
    let id = server.publish(2).await;
    let patch = EndpointPatch { url: Some(well.url()), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, patch).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Done, "another receiver is not throttled");
    assert_eq!(throttled.requests().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrency_and_rate_limits_are_enforced() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let slow = || Reply { after: Duration::from_millis(30), ..Reply::new("200 OK") };
    let (few, rare) =
        (Receiver::new(move |_, _| slow()).await, Receiver::new(|_, _| Reply::new("200 OK")).await);
    server.endpoint(few.url(), |patch| patch.concurrency = Some(2)).await;
    server.endpoint(rare.url(), |patch| patch.per_second = Some(Some(20.0))).await;
    let began = std::time::Instant::now();
    for n in 0..30 {
        server.publish(n).await;
    }
    until("all events have arrived", async || (few.requests().len(), rare.requests().len()) == (30, 30))
        .await;
    // Rate: a burst of a quarter second's tokens, the rest at 20 per second.
    assert!(began.elapsed() >= Duration::from_millis(1000), "{:?}", began.elapsed());
    let most = few.max_concurrent();
    assert!(most <= 2, "{most} concurrent requests");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeout_of_an_endpoint_is_enforced() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let slow = || Reply { after: Duration::from_millis(1500), ..Reply::new("200 OK") };
    let (hasty, patient) = (Receiver::new(move |_, _| slow()).await, Receiver::new(move |_, _| slow()).await);
    let once = |patch: &mut EndpointPatch, millis| {
        patch.timeout_ms = Some(millis);
        patch.retry = Some(Some(RetryOverride::new().max_attempts(1)));
    };
    let hasty = server.endpoint(hasty.url(), |patch| once(patch, 1000)).await;
    let patient = server.endpoint(patient.url(), |patch| once(patch, 3000)).await;
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    let dead = server.dead_of(&hasty).await;
    assert!(dead[0].errors[0].contains("longer than 1000 ms"), "{:?}", dead[0].errors);
    assert!(server.dead_of(&patient).await.is_empty(), "3 s were enough");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_410_does_not_disable_a_changed_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let late = Reply { after: Duration::from_millis(500), ..Reply::new("410 Gone") };
    let gone = Receiver::new(move |_, _| late.clone()).await;
    let well = Receiver::new(|_, _| Reply::new("204 No Content")).await;
    let endpoint = server.endpoint(gone.url(), |_| {}).await;
    let id = server.publish(1).await;
    until("the request is in flight", async || !gone.requests().is_empty()).await;
    let patch = EndpointPatch { url: Some(well.url()), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, patch).await.unwrap();
    server.ended(id).await;
    let again = server.publish(2).await;
    assert_eq!(server.ended(again).await, EventStatus::Done);
    assert!(server.webhooks.endpoints().get(&endpoint.id).await.unwrap().is_enabled());
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_has_its_own_policy_and_its_dead_letters_are_replayed_to_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let broken = Receiver::new(|n, _| Reply::new(if n < 2 { "500 Oops" } else { "200 OK" })).await;
    let works = Receiver::new(|_, _| Reply::new("200 OK")).await;
    let endpoint = server
        .endpoint(broken.url(), |patch| patch.retry = Some(Some(RetryOverride::new().max_attempts(2))))
        .await;
    server.endpoint(works.url(), |_| {}).await;
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    assert_eq!((broken.requests().len(), works.requests().len()), (2, 1));
    let dead = server.dead_of(&endpoint).await;
    assert_eq!(dead.len(), 1);
    assert!(dead[0].errors[0].contains("answered 500"), "{:?}", dead[0].errors);
    let now = server.bus.store().clock().now();
    server.bus.store().replay(id, name_of(&endpoint), now).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Done);
    assert_eq!(
        (broken.requests().len(), works.requests().len()),
        (3, 1),
        "the other endpoint does not receive it again"
    );
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_410_disables_the_endpoint_and_its_dead_letters_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let gone = Receiver::new(|n, _| Reply::new(if n == 0 { "410 Gone" } else { "200 OK" })).await;
    let watcher = Receiver::new(|_, _| Reply::new("200 OK")).await;
    let endpoint = server.endpoint(gone.url(), |_| {}).await;
    server.endpoint(watcher.url(), |patch| patch.patterns = Some(vec![DISABLED.into()])).await;
    let first = server.publish(1).await;
    assert_eq!(server.ended(first).await, EventStatus::Dlq, "410 is not retried");
    until("the endpoint is disabled", async || {
        !server.webhooks.endpoints().get(&endpoint.id).await.unwrap().is_enabled()
    })
    .await;
    until("the event about it is delivered", async || watcher.requests().len() == 1).await;
    assert!(body_of(&watcher.requests()[0]).contains(endpoint.id.as_str()));
    assert!(body_of(&watcher.requests()[0]).contains(r#""reason":"gone""#));

    let second = server.publish(2).await;
    assert_eq!(server.ended(second).await, EventStatus::Dlq);
    assert_eq!(gone.requests().len(), 1, "a disabled endpoint receives nothing");
    let dead = server.dead_of(&endpoint).await;
    assert_eq!(dead.len(), 2, "its deliveries are dead-lettered");
    assert!(dead[0].errors[0].contains("enable it, and replay"), "{:?}", dead[0].errors);

    let patch = EndpointPatch { enabled: Some(true), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, patch).await.unwrap();
    for id in [first, second] {
        let now = server.bus.store().clock().now();
        server.bus.store().replay(id, name_of(&endpoint), now).await.unwrap();
        assert_eq!(server.ended(id).await, EventStatus::Done);
    }
    assert_eq!((gone.requests().len(), watcher.requests().len()), (3, 1));
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_throttles_the_whole_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let slow = Receiver::new(|n, _| match n {
        0 => Reply { headers: "Retry-After: 2\r\n".into(), ..Reply::new("429 Too Many Requests") },
        _ => Reply::new("200 OK"),
    })
    .await;
    let endpoint = server.endpoint(slow.url(), |_| {}).await;
    let first = server.publish(0).await;
    until("the receiver answers with Retry-After", async || slow.requests().len() == 1).await;
    until("the throttling is in force", async || {
        let now = server.bus.store().clock().now();
        let subscriptions = server.bus.subscriptions();
        let one = subscriptions.iter().find(|one| *one.name() == name_of(&endpoint)).unwrap().clone();
        one.throttled_until(now).is_some()
    })
    .await;
    let began = std::time::Instant::now();
    let mut ids = vec![first];
    for n in 1..5 {
        ids.push(server.publish(n).await);
    }
    for id in ids {
        assert_eq!(server.ended(id).await, EventStatus::Done);
    }
    assert!(
        began.elapsed() >= Duration::from_millis(1500),
        "the other events did not wait: {:?}",
        began.elapsed()
    );
    assert_eq!(slow.requests().len(), 6);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_429_without_retry_after_reduces_the_rate_of_the_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let receiver = Receiver::new(|_, _| Reply::new("429 Too Many Requests")).await;
    let endpoint = server.endpoint(receiver.url(), |_| {}).await;
    let id = server.publish(1).await;
    let rate = || {
        let subscriptions = server.bus.subscriptions();
        subscriptions.iter().find(|one| one.name().as_str() == endpoint.id.as_str()).unwrap().reduced_rate()
    };
    until("the rate is reduced", async || rate().is_some()).await;
    let mut attempts = Vec::new();
    until("the attempt is recorded", async || {
        attempts = server.bus.store().event(id).await.unwrap().attempts;
        !attempts.is_empty()
    })
    .await;
    assert!((9_000..=11_000).contains(&attempts[0].delay_ms), "not the 20 ms of the policy: {attempts:?}");
    // A change of the endpoint keeps it.
    let slower = EndpointPatch { concurrency: Some(4), ..EndpointPatch::default() };
    server.webhooks.update(&endpoint.id, None, slower).await.unwrap();
    assert!(rate().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_in_force_on_return_and_conflicting_versions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let (old, new) =
        (Receiver::new(|_, _| Reply::new("200 OK")).await, Receiver::new(|_, _| Reply::new("200 OK")).await);
    let endpoint = server.endpoint(old.url(), |_| {}).await;
    let patch = EndpointPatch { url: Some(new.url()), ..EndpointPatch::default() };
    let changed = server.webhooks.update(&endpoint.id, Some(1), patch.clone()).await.unwrap();
    assert_eq!((changed.version, changed.url.as_str()), (2, new.url().as_str()));
    let late = server.webhooks.update(&endpoint.id, Some(1), patch).await.unwrap_err();
    assert!(
        matches!(late, WebhooksError::Endpoints(EndpointStoreError::Changed { seen: 1, now: 2, .. })),
        "{late}"
    );
    assert_eq!(server.ended(server.publish(1).await).await, EventStatus::Done);
    assert_eq!((old.requests().len(), new.requests().len()), (0, 1));

    // Two signatures during a rotation.
    let rotated = server
        .webhooks
        .rotate(&endpoint.id, Some(Secret::generate_pair()), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(rotated.secrets.len(), 2);
    assert_eq!(server.ended(server.publish(2).await).await, EventStatus::Done);
    let signature = header_of(&new.requests()[1], "webhook-signature").unwrap().to_owned();
    let kinds: Vec<_> = signature.split(' ').map(|one| one.split(',').next().unwrap()).collect();
    assert_eq!(kinds, ["v1a", "v1"]);

    let record = server.webhooks.test(&endpoint.id).await.unwrap();
    assert_eq!(record.status, Some(200));
    assert!(body_of(&new.requests()[2]).contains("redrive.test"));

    server.webhooks.remove(&endpoint.id).await.unwrap();
    let gone = server.webhooks.endpoints().get(&endpoint.id).await.unwrap_err();
    assert!(matches!(gone, EndpointStoreError::NotFound { .. }));
    let id = server.publish(3).await;
    assert_eq!(server.ended(id).await, EventStatus::Done, "no endpoint matches any more");
    assert_eq!(new.requests().len(), 3);
    assert!(server.webhooks.endpoints().list(None, 10).await.unwrap().0.is_empty());
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_an_endpoint_dead_letters_its_deliveries_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let broken = Receiver::new(|_, _| Reply::new("500 Oops")).await;
    let slow = RetryOverride::new().max_attempts(5).base_delay_ms(1500).max_delay_ms(3000);
    let endpoint = server.endpoint(broken.url(), |patch| patch.retry = Some(Some(slow))).await;
    let id = server.publish(1).await;
    until("the first attempt was made", async || broken.requests().len() == 1).await;
    server.webhooks.remove(&endpoint.id).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    let dead = server.dead_of(&endpoint).await;
    assert!(dead[0].errors.last().unwrap().contains("was removed"), "{:?}", dead[0].errors);
    assert_eq!(broken.requests().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_by_another_process_take_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let server = Server::open(&path).await;
    let receiver = Receiver::new(|_, _| Reply::new("200 OK")).await;
    // A command that runs beside the server.
    let beside =
        SqliteStore::open(&path, SqliteOptions { owner: false, ..SqliteOptions::default() }).unwrap();
    let endpoints = EndpointStore::new(Arc::new(beside), client(), Arc::new(Vault::new([KEY]).unwrap()));
    let patch = EndpointPatch {
        url: Some(receiver.url()),
        patterns: Some(vec!["order.*".to_owned()]),
        ..EndpointPatch::default()
    };
    let endpoint = endpoints.create(patch, None).await.unwrap();
    let is_up =
        async || server.bus.subscriptions().iter().any(|one| one.name().as_str() == endpoint.id.as_str());
    until("it is subscribed", is_up).await;
    assert_eq!(server.ended(server.publish(1).await).await, EventStatus::Done);
    assert_eq!(receiver.requests().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn endpoints_at_forbidden_addresses_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    for url in
        ["http://10.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://[::1]/", "http://0x7f.2/"]
    {
        let patch = EndpointPatch {
            url: Some(url.into()),
            patterns: Some(vec!["*".into()]),
            ..EndpointPatch::default()
        };
        let refused = server.webhooks.create(patch, None).await.unwrap_err();
        assert!(
            matches!(refused, WebhooksError::Endpoints(EndpointStoreError::Unreachable(_))),
            "{url}: {refused}"
        );
    }
    server.bus.shutdown().await.unwrap();
}
