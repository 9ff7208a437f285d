//! Endpoints on a bus, with receivers over real sockets.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod receiver;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use receiver::{Receiver, Said, body_of, header_of};
use redrive::{
    Clock, DlqFilter, DlqPage, EventBus, EventId, EventStatus, RetryOverride, RetryPolicy, SqliteOptions,
    SqliteStore, SubscriptionName, Tracking, VirtualTime,
};
use redrive_webhook::{
    AttemptRecord, BookError, Client, DISABLED, Deadlines, Endpoint, EndpointBook, Guard, Secret, Vault,
    Watching, Webhooks, WebhooksError, Wish,
};

const KEY: &str = "bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU=";
const PATIENCE: Duration = Duration::from_secs(60);

fn client() -> Client {
    let deadlines = Deadlines {
        connect: Duration::from_secs(2),
        first_byte: Duration::from_secs(2),
        total: Duration::from_secs(6),
    };
    let guard = Guard::default().allow("127.0.0.1/32".parse().unwrap());
    Client::builder().guard(guard).deadlines(deadlines).build().unwrap()
}

/// A server without its HTTP side.
struct Server {
    bus: EventBus,
    webhooks: Arc<Webhooks>,
    _watching: Watching,
}

impl Server {
    async fn open(path: &Path) -> Self {
        Server::open_with(path, &[KEY], Clock::system()).await
    }

    /// With other keys for what is secret, the newest first, or with another clock.
    async fn open_with(path: &Path, keys: &[&str], clock: Clock) -> Self {
        let store = SqliteStore::open(path, SqliteOptions { clock, ..SqliteOptions::default() }).unwrap();
        let policy =
            RetryOverride::new().base_delay_ms(20).max_delay_ms(40).apply_to(&RetryPolicy::webhook());
        let builder = EventBus::builder().tracking(Tracking::PerSubscription).policy(policy.unwrap());
        let bus = builder.on(Arc::new(store)).await.unwrap();
        let vault = Arc::new(Vault::new(keys.iter().copied()).unwrap());
        let book = EndpointBook::new(Arc::clone(bus.store()), client(), vault);
        let (webhooks, watching) = Webhooks::open(bus.clone(), book).await.unwrap();
        bus.start().await.unwrap();
        Server { bus, webhooks, _watching: watching }
    }

    async fn endpoint(&self, url: String, change: impl FnOnce(&mut Wish)) -> Endpoint {
        let mut wish = Wish { url: Some(url), patterns: Some(vec!["order.*".to_owned()]), ..Wish::default() };
        change(&mut wish);
        self.webhooks.create(wish, None).await.unwrap()
    }

    async fn publish(&self, n: u32) -> EventId {
        self.bus.publish("order.paid", &serde_json::json!({"n": n})).enqueue().await.unwrap()
    }

    async fn ended(&self, id: EventId) -> EventStatus {
        let mut status = EventStatus::Pending;
        until("it comes to its end", async || {
            status = self.bus.store().event(id).await.unwrap().status;
            matches!(status, EventStatus::Done | EventStatus::Dlq)
        })
        .await;
        status
    }

    async fn dead_of(&self, endpoint: &Endpoint) -> Vec<redrive::DeadLetter> {
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
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_goes_to_every_endpoint_that_wants_it_signed_and_on_record() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let (one, two) = (
        Receiver::new(|_, _| Said { body: "thanks".into(), ..Said::new("200 OK") }).await,
        Receiver::new(|n, _| Said::new(if n == 0 { "500 Oops" } else { "204 No Content" })).await,
    );
    let endpoint = server
        .endpoint(one.url(), |wish| wish.headers = Some(vec![("X-Tenant".into(), "acme".into())]))
        .await;
    server.endpoint(two.url(), |_| {}).await;
    server.endpoint(one.url(), |wish| wish.patterns = Some(vec!["invoice.*".into()])).await;
    let id = server.publish(7).await;
    assert_eq!(server.ended(id).await, EventStatus::Done);
    let (heard, heard_by_two) = (one.heard(), two.heard());
    assert_eq!((heard.len(), heard_by_two.len()), (1, 2), "the first attempt failed at one of them");
    let ids: Vec<_> = heard_by_two.iter().map(|request| header_of(request, "webhook-id").unwrap()).collect();
    assert_eq!(ids, [id.to_string(), id.to_string()], "the same at every attempt");
    assert_eq!(header_of(&heard[0], "x-tenant"), Some("acme"));
    let body: serde_json::Value = serde_json::from_str(body_of(&heard[0])).unwrap();
    assert_eq!((&body["type"], &body["data"]["n"]), (&"order.paid".into(), &7.into()));

    // As the receiver's own library sees it.
    let secret = endpoint.secrets[0].secret.reveal();
    let verifier = standardwebhooks::Webhook::new(&secret).unwrap();
    let mut headers = hyper::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, header_of(&heard[0], name).unwrap().parse().unwrap());
    }
    verifier.verify(body_of(&heard[0]).as_bytes(), &headers).unwrap();

    let records = server.records(id).await;
    assert_eq!(records.len(), 3, "every attempt, also those that succeed");
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
async fn endpoints_survive_a_restart_and_their_secrets_rest_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Said::new("200 OK")).await;
    let server = Server::open(&path).await;
    let endpoint = server
        .endpoint(receiver.url(), |wish| {
            wish.headers = Some(vec![("Authorization".into(), "Bearer s3cr3t-t0ken".into())]);
            wish.retry = Some(Some(RetryOverride::new().max_attempts(2)));
            (wish.concurrency, wish.per_second, wish.timeout_ms) = (Some(3), Some(Some(50.0)), Some(4000));
        })
        .await;
    let secret = endpoint.secrets[0].secret.reveal();
    server.bus.shutdown().await.unwrap();
    drop(server);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(&secret) && !text.contains("s3cr3t-t0ken"), "what is secret is sealed");
    }
    let server = Server::open(&path).await;
    let again = server.webhooks.book().get(&endpoint.id).await.unwrap();
    assert_eq!(again.secrets[0].secret.reveal(), secret);
    assert_eq!((again.limits, again.timeout), (endpoint.limits, Duration::from_secs(4)));
    assert_eq!(again.retry, Some(RetryOverride::new().max_attempts(2)));
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Done);
    assert_eq!(header_of(&receiver.heard()[0], "authorization"), Some("Bearer s3cr3t-t0ken"));
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_while_an_endpoint_cannot_be_read_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Said::new("204 No Content")).await;
    let server = Server::open(&path).await;
    let endpoint = server.endpoint(receiver.url(), |_| {}).await;
    server.bus.shutdown().await.unwrap();

    let server = Server::open_with(&path, &[&Vault::generate_key()], Clock::system()).await;
    let id = server.publish(1).await;
    let kept = server.bus.store().event(id).await.unwrap();
    assert_eq!(kept.deliveries.len(), 1, "it is owed to it: {kept:?}");
    until("it is held", async || server.bus.dispatcher().in_flight() == 0).await;
    assert!(!server.bus.store().depth().await.unwrap().is_idle());
    let (listed, _) = server.webhooks.book().list(None, 10).await.unwrap();
    assert!(listed.is_empty(), "the list can be looked at");
    assert!(matches!(server.webhooks.book().get(&endpoint.id).await, Err(BookError::Sealed { .. })));
    server.bus.shutdown().await.unwrap();
    assert!(receiver.heard().is_empty());

    let server = Server::open(&path).await;
    assert_eq!(server.ended(id).await, EventStatus::Done);
    assert_eq!(receiver.heard().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_cannot_be_read_can_be_removed_and_what_it_is_owed_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Said::new("204 No Content")).await;
    let server = Server::open(&path).await;
    let endpoint = server.endpoint(receiver.url(), |_| {}).await;
    let (removed, _) = (server.endpoint(receiver.url(), |_| {}).await, server.publish(0).await);
    server.webhooks.remove(&removed.id).await.unwrap();
    server.bus.shutdown().await.unwrap();

    let server = Server::open_with(&path, &[&Vault::generate_key()], Clock::system()).await;
    let id = server.publish(1).await;
    let refused = server.webhooks.update(&endpoint.id, None, Wish::default()).await.unwrap_err();
    assert!(refused.to_string().contains("only be removed"), "{refused}");
    server.webhooks.remove(&endpoint.id).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    let dead = server.dead_of(&endpoint).await;
    assert!(dead[0].errors[0].contains("was removed"), "{:?}", dead[0].errors);
    assert!(matches!(server.webhooks.book().get(&endpoint.id).await, Err(BookError::NotFound { .. })));
    // One that was removed before needs no key either.
    assert!(matches!(server.webhooks.book().get(&removed.id).await, Err(BookError::NotFound { .. })));
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_for_secrets_is_exchanged_by_two_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let receiver = Receiver::new(|_, _| Said::new("204 No Content")).await;
    let server = Server::open(&path).await;
    let token = |wish: &mut Wish| wish.headers = Some(vec![("Authorization".into(), "Bearer t0ken".into())]);
    let endpoint = server.endpoint(receiver.url(), token).await;
    server.bus.shutdown().await.unwrap();

    let new = Vault::generate_key();
    for keys in [&[new.as_str(), KEY][..], &[new.as_str()]] {
        let server = Server::open_with(&path, keys, Clock::system()).await;
        let id = server.publish(1).await;
        assert_eq!(server.ended(id).await, EventStatus::Done);
        let found = server.webhooks.book().get(&endpoint.id).await.unwrap();
        assert_eq!(found.secrets[0].secret.reveal(), endpoint.secrets[0].secret.reveal());
        assert_eq!(found.version, 2, "sealed again once, and not at every start");
        server.bus.shutdown().await.unwrap();
    }
    let heard = receiver.heard();
    assert_eq!(heard.len(), 2);
    assert!(heard.iter().all(|request| header_of(request, "authorization") == Some("Bearer t0ken")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_days_without_a_success_disable_an_endpoint_and_who_enables_it_gives_it_five_more() {
    let folder = tempfile::tempdir().unwrap();
    let time = VirtualTime::new();
    let server = Server::open_with(&folder.path().join("events.db"), &[KEY], time.clock()).await;
    let broken = Receiver::new(|_, _| Said::new("500 Oops")).await;
    let watcher = Receiver::new(|_, _| Said::new("200 OK")).await;
    let once = |wish: &mut Wish| wish.retry = Some(Some(RetryOverride::new().max_attempts(1)));
    let endpoint = server.endpoint(format!("{}?token=s3cr3t", broken.url()), once).await;
    server.endpoint(watcher.url(), |wish| wish.patterns = Some(vec!["redrive.*".into()])).await;
    let fails = async |times: u32| {
        for n in 0..times {
            let before = broken.heard().len();
            let id = server.publish(n).await;
            assert_eq!(server.ended(id).await, EventStatus::Dlq);
            assert_eq!(broken.heard().len(), before + 1, "it is still sent to it");
            tokio::time::sleep(Duration::from_millis(50)).await; // for whoever writes it down
            time.advance(Duration::from_secs(61));
        }
    };
    let is_enabled = async || server.webhooks.book().get(&endpoint.id).await.unwrap().is_enabled();
    fails(7).await;
    assert!(is_enabled().await, "not for minutes, however often");
    time.advance(Duration::from_secs(5 * 24 * 3600));
    server.publish(8).await;
    until("it is disabled", async || !is_enabled().await).await;
    until("whoever wants to know is told", async || watcher.heard().len() == 1).await;
    let told = body_of(&watcher.heard()[0]).to_owned();
    assert!(told.contains(DISABLED) && told.contains(r#""reason":"failing""#), "{told}");
    assert!(!told.contains("s3cr3t"), "what may be secret goes to nobody else: {told}");

    let enabled_at = time.now();
    let wish = Wish { enabled: Some(true), ..Wish::default() };
    server.webhooks.update(&endpoint.id, None, wish).await.unwrap();
    fails(7).await;
    assert!(is_enabled().await, "what it did before does not count any more");
    let since = server.webhooks.failing_since(&endpoint.id).await.unwrap().unwrap();
    assert!(since >= enabled_at, "{since} before {enabled_at}");

    // And another address is another receiver.
    time.advance(Duration::from_secs(6 * 24 * 3600));
    let elsewhere = Receiver::new(|_, _| Said::new("500 Oops")).await;
    let wish = Wish { url: Some(elsewhere.url()), ..Wish::default() };
    server.webhooks.update(&endpoint.id, None, wish).await.unwrap();
    assert_eq!(server.webhooks.failing_since(&endpoint.id).await.unwrap(), None);
    let id = server.publish(9).await;
    server.ended(id).await;
    assert!(is_enabled().await);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_comes_and_goes_gets_everything_once_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let time = VirtualTime::new();
    let server = Server::open_with(&folder.path().join("events.db"), &[KEY], time.clock()).await;
    // A minute there, a minute not: long enough to open its circuit each time.
    let clock = time.clock();
    let is_there = move || clock.now().as_millis() / 60_000 % 2 == 0;
    let flapping = Receiver::new(move |_, _| Said::new(if is_there() { "200 OK" } else { "503 Down" })).await;
    let patient = |wish: &mut Wish| wish.retry = Some(Some(RetryOverride::new().max_attempts(100)));
    server.endpoint(flapping.url(), patient).await;
    let mut ids = Vec::new();
    for n in 0..150 {
        ids.push(server.publish(n).await);
        time.advance(Duration::from_secs(2));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    until("all of it has come", async || {
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
    assert!(flapping.heard().len() > 150, "it was down in between");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_endpoint_asked_for_outlives_a_change_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let busy = Said { headers: "Retry-After: 600\r\n".into(), ..Said::new("429 Too Many Requests") };
    let throttled = Receiver::new(move |_, _| busy.clone()).await;
    let well = Receiver::new(|_, _| Said::new("204 No Content")).await;
    let endpoint = server.endpoint(throttled.url(), |_| {}).await;
    let throttled_until = || {
        let (now, all) = (server.bus.store().clock().now(), server.bus.subscriptions());
        all.iter().find(|one| *one.name() == name_of(&endpoint)).unwrap().throttled_until(now)
    };
    server.publish(1).await;
    until("it is throttled", async || throttled_until().is_some()).await;
    let asked = throttled_until();
    let wish = Wish { description: Some("the shop".into()), ..Wish::default() };
    server.webhooks.update(&endpoint.id, None, wish).await.unwrap();
    assert_eq!(throttled_until(), asked, "it was not asked about its name");
    let id = server.publish(2).await;
    let wish = Wish { url: Some(well.url()), ..Wish::default() };
    server.webhooks.update(&endpoint.id, None, wish).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Done, "somebody else has asked for nothing");
    assert_eq!(throttled.heard().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_endpoint_may_get_at_once_and_in_a_second_is_kept_to() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let slow = || Said { after: Duration::from_millis(30), ..Said::new("200 OK") };
    let (few, rare) =
        (Receiver::new(move |_, _| slow()).await, Receiver::new(|_, _| Said::new("200 OK")).await);
    server.endpoint(few.url(), |wish| wish.concurrency = Some(2)).await;
    server.endpoint(rare.url(), |wish| wish.per_second = Some(Some(20.0))).await;
    let began = std::time::Instant::now();
    for n in 0..30 {
        server.publish(n).await;
    }
    until("all of it has come", async || (few.heard().len(), rare.heard().len()) == (30, 30)).await;
    // Two at a time of 30 ms each; and a quarter of a second's share at once, the others at 20 in a second.
    assert!(began.elapsed() >= Duration::from_millis(1000), "{:?}", began.elapsed());
    let most = few.most_at_once();
    assert!(most <= 2, "{most} at once");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_has_as_long_as_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let slow = || Said { after: Duration::from_millis(1500), ..Said::new("200 OK") };
    let (hasty, patient) = (Receiver::new(move |_, _| slow()).await, Receiver::new(move |_, _| slow()).await);
    let once = |wish: &mut Wish, millis| {
        wish.timeout_ms = Some(millis);
        wish.retry = Some(Some(RetryOverride::new().max_attempts(1)));
    };
    let hasty = server.endpoint(hasty.url(), |wish| once(wish, 1000)).await;
    let patient = server.endpoint(patient.url(), |wish| once(wish, 3000)).await;
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    let dead = server.dead_of(&hasty).await;
    assert!(dead[0].errors[0].contains("longer than 1000 ms"), "{:?}", dead[0].errors);
    assert!(server.dead_of(&patient).await.is_empty(), "it had the time");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_mended_an_endpoint_is_not_undone_by_a_late_410() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let late = Said { after: Duration::from_millis(500), ..Said::new("410 Gone") };
    let gone = Receiver::new(move |_, _| late.clone()).await;
    let well = Receiver::new(|_, _| Said::new("204 No Content")).await;
    let endpoint = server.endpoint(gone.url(), |_| {}).await;
    let id = server.publish(1).await;
    until("it is under way", async || !gone.heard().is_empty()).await;
    let wish = Wish { url: Some(well.url()), ..Wish::default() };
    server.webhooks.update(&endpoint.id, None, wish).await.unwrap();
    server.ended(id).await;
    let again = server.publish(2).await;
    assert_eq!(server.ended(again).await, EventStatus::Done);
    assert!(server.webhooks.book().get(&endpoint.id).await.unwrap().is_enabled());
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_own_policy_holds_and_what_it_gives_up_is_replayed_to_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let broken = Receiver::new(|n, _| Said::new(if n < 2 { "500 Oops" } else { "200 OK" })).await;
    let works = Receiver::new(|_, _| Said::new("200 OK")).await;
    let endpoint = server
        .endpoint(broken.url(), |wish| wish.retry = Some(Some(RetryOverride::new().max_attempts(2))))
        .await;
    server.endpoint(works.url(), |_| {}).await;
    let id = server.publish(1).await;
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    assert_eq!((broken.heard().len(), works.heard().len()), (2, 1));
    let dead = server.dead_of(&endpoint).await;
    assert_eq!(dead.len(), 1);
    assert!(dead[0].errors[0].contains("answered 500"), "{:?}", dead[0].errors);
    let now = server.bus.store().clock().now();
    server.bus.store().replay(id, name_of(&endpoint), now).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Done);
    assert_eq!((broken.heard().len(), works.heard().len()), (3, 1), "the other one does not get it again");
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_answers_410_is_disabled_and_what_it_misses_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let gone = Receiver::new(|n, _| Said::new(if n == 0 { "410 Gone" } else { "200 OK" })).await;
    let watcher = Receiver::new(|_, _| Said::new("200 OK")).await;
    let endpoint = server.endpoint(gone.url(), |_| {}).await;
    server.endpoint(watcher.url(), |wish| wish.patterns = Some(vec![DISABLED.into()])).await;
    let first = server.publish(1).await;
    assert_eq!(server.ended(first).await, EventStatus::Dlq, "there is no use in trying again");
    until("it is disabled", async || !server.webhooks.book().get(&endpoint.id).await.unwrap().is_enabled())
        .await;
    until("whoever wants to know is told", async || watcher.heard().len() == 1).await;
    assert!(body_of(&watcher.heard()[0]).contains(endpoint.id.as_str()));
    assert!(body_of(&watcher.heard()[0]).contains(r#""reason":"gone""#));

    let second = server.publish(2).await;
    assert_eq!(server.ended(second).await, EventStatus::Dlq);
    assert_eq!(gone.heard().len(), 1, "nothing more was sent");
    let dead = server.dead_of(&endpoint).await;
    assert_eq!(dead.len(), 2, "what it misses is kept");
    assert!(dead[0].errors[0].contains("enable it, and replay"), "{:?}", dead[0].errors);

    let wish = Wish { enabled: Some(true), ..Wish::default() };
    server.webhooks.update(&endpoint.id, None, wish).await.unwrap();
    for id in [first, second] {
        let now = server.bus.store().clock().now();
        server.bus.store().replay(id, name_of(&endpoint), now).await.unwrap();
        assert_eq!(server.ended(id).await, EventStatus::Done);
    }
    assert_eq!((gone.heard().len(), watcher.heard().len()), (3, 1));
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_throttles_the_endpoint_and_not_only_the_message() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let slow = Receiver::new(|n, _| match n {
        0 => Said { headers: "Retry-After: 2\r\n".into(), ..Said::new("429 Too Many Requests") },
        _ => Said::new("200 OK"),
    })
    .await;
    let endpoint = server.endpoint(slow.url(), |_| {}).await;
    let first = server.publish(0).await;
    until("it says when to come again", async || slow.heard().len() == 1).await;
    until("it is heard", async || {
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
    assert!(began.elapsed() >= Duration::from_millis(1500), "the others waited, too: {:?}", began.elapsed());
    assert_eq!(slow.heard().len(), 6);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_in_force_when_it_returns_and_of_two_at_once_one_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let (old, new) =
        (Receiver::new(|_, _| Said::new("200 OK")).await, Receiver::new(|_, _| Said::new("200 OK")).await);
    let endpoint = server.endpoint(old.url(), |_| {}).await;
    let wish = Wish { url: Some(new.url()), ..Wish::default() };
    let changed = server.webhooks.update(&endpoint.id, Some(1), wish.clone()).await.unwrap();
    assert_eq!((changed.version, changed.url.as_str()), (2, new.url().as_str()));
    let late = server.webhooks.update(&endpoint.id, Some(1), wish).await.unwrap_err();
    assert!(matches!(late, WebhooksError::Book(BookError::Changed { seen: 1, now: 2, .. })), "{late}");
    assert_eq!(server.ended(server.publish(1).await).await, EventStatus::Done);
    assert_eq!((old.heard().len(), new.heard().len()), (0, 1));

    // Two signatures while a secret is exchanged.
    let rotated = server
        .webhooks
        .rotate(&endpoint.id, Some(Secret::generate_pair()), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(rotated.secrets.len(), 2);
    assert_eq!(server.ended(server.publish(2).await).await, EventStatus::Done);
    let signature = header_of(&new.heard()[1], "webhook-signature").unwrap().to_owned();
    let kinds: Vec<_> = signature.split(' ').map(|one| one.split(',').next().unwrap()).collect();
    assert_eq!(kinds, ["v1a", "v1"]);

    let record = server.webhooks.test(&endpoint.id).await.unwrap();
    assert_eq!(record.status, Some(200));
    assert!(body_of(&new.heard()[2]).contains("redrive.test"));

    server.webhooks.remove(&endpoint.id).await.unwrap();
    let gone = server.webhooks.book().get(&endpoint.id).await.unwrap_err();
    assert!(matches!(gone, BookError::NotFound { .. }));
    let id = server.publish(3).await;
    assert_eq!(server.ended(id).await, EventStatus::Done, "nobody wants it any more");
    assert_eq!(new.heard().len(), 3);
    assert!(server.webhooks.book().list(None, 10).await.unwrap().0.is_empty());
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_removed_endpoint_was_owed_is_given_up_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    let broken = Receiver::new(|_, _| Said::new("500 Oops")).await;
    let slow = RetryOverride::new().max_attempts(5).base_delay_ms(1500).max_delay_ms(3000);
    let endpoint = server.endpoint(broken.url(), |wish| wish.retry = Some(Some(slow))).await;
    let id = server.publish(1).await;
    until("it was tried", async || broken.heard().len() == 1).await;
    server.webhooks.remove(&endpoint.id).await.unwrap();
    assert_eq!(server.ended(id).await, EventStatus::Dlq);
    let dead = server.dead_of(&endpoint).await;
    assert!(dead[0].errors.last().unwrap().contains("was removed"), "{:?}", dead[0].errors);
    assert_eq!(broken.heard().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_change_in_the_database_is_heard_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    let server = Server::open(&path).await;
    let receiver = Receiver::new(|_, _| Said::new("200 OK")).await;
    // A command beside the running server.
    let beside =
        SqliteStore::open(&path, SqliteOptions { owner: false, ..SqliteOptions::default() }).unwrap();
    let book = EndpointBook::new(Arc::new(beside), client(), Arc::new(Vault::new([KEY]).unwrap()));
    let wish =
        Wish { url: Some(receiver.url()), patterns: Some(vec!["order.*".to_owned()]), ..Wish::default() };
    let endpoint = book.create(wish, None).await.unwrap();
    let is_there =
        async || server.bus.subscriptions().iter().any(|one| one.name().as_str() == endpoint.id.as_str());
    until("it is subscribed", is_there).await;
    assert_eq!(server.ended(server.publish(1).await).await, EventStatus::Done);
    assert_eq!(receiver.heard().len(), 1);
    server.bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn nothing_is_ever_sent_to_forbidden_addresses_and_that_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::open(&folder.path().join("events.db")).await;
    for url in
        ["http://10.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://[::1]/", "http://0x7f.2/"]
    {
        let wish = Wish { url: Some(url.into()), patterns: Some(vec!["*".into()]), ..Wish::default() };
        let refused = server.webhooks.create(wish, None).await.unwrap_err();
        assert!(matches!(refused, WebhooksError::Book(BookError::Unreachable(_))), "{url}: {refused}");
    }
    server.bus.shutdown().await.unwrap();
}
