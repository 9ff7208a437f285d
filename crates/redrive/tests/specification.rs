//! Requirements of the specification that no other test covers, on virtual time.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::dlq::{DlqFilter, DlqPage};
use redrive::events::EventStatus;
use redrive::handler::Handler;
use redrive::retry::breaker::{BreakerConfig, BreakerSnapshot};
use redrive::retry::{BoxError, ClassifyError, Jitter, RetryOverride, RetryPolicy, VirtualTime};
use redrive::subscription::{Pattern, Subscription};
use redrive::{BusError, Event, EventBus, EventBusBuilder, EventId};
use redrive_retry::audit::{AuditError, AuditEvent, AuditSink, RetryLogEntry};
use serde_json::json;

use crate::test_store::TestStore;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

struct World {
    time: VirtualTime,
    bus: EventBus,
    store_under_test: TestStore,
}

fn exact() -> RetryPolicy {
    RetryPolicy::builder().jitter(Jitter::None).build().unwrap()
}

impl World {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let (time, store_under_test) = (VirtualTime::new(), TestStore::new());
        let bus = store_under_test.open_at(&time, change(EventBus::builder().policy(exact()))).await;
        World { time, bus, store_under_test }
    }

    /// Shuts the bus down and opens another one on the same store.
    async fn reopened(self, change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let World { time, bus, store_under_test } = self;
        time.drive(bus.shutdown()).await.unwrap();
        let bus = store_under_test.open_at(&time, change(EventBus::builder().policy(exact()))).await;
        World { time, bus, store_under_test }
    }

    /// Advances virtual time.
    async fn pass(&self, duration: Duration) {
        self.time.drive(self.time.clock().sleep(duration)).await;
    }

    /// Publishes and waits for the outcome, good or bad.
    async fn publish(&self, event_type: &str) -> EventId {
        self.time.drive(async { self.bus.publish(event_type, &json!({"n": 1})).await }).await.unwrap()
    }

    /// Publishes with a single attempt and waits for the outcome.
    async fn publish_once(&self, event_type: &str) -> EventId {
        let publish = self.bus.publish(event_type, &1).retry(RetryOverride::new().max_retries(0));
        self.time.drive(async { publish.await }).await.unwrap()
    }

    async fn enqueue(&self, event_type: &str) -> EventId {
        self.bus.publish(event_type, &1).enqueue().await.unwrap()
    }

    async fn status(&self, id: EventId) -> EventStatus {
        self.bus.store().event(id).await.unwrap().status
    }

    fn subscription(&self, name: &str) -> Arc<Subscription> {
        self.bus
            .subscriptions()
            .into_iter()
            .find(|subscription| subscription.name().as_str() == name)
            .unwrap()
    }
}

async fn works(_: Event) -> Result<(), BoxError> {
    Ok(())
}

async fn fails(_: Event) -> Result<(), BoxError> {
    Err("no".into())
}

async fn hangs(_: Event) -> Result<(), BoxError> {
    std::future::pending().await
}

/// Handler that counts its calls and fails while its flag is set.
#[derive(Clone, Default)]
struct Switch {
    fails: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl Switch {
    fn handler(&self) -> impl Handler + use<> {
        let switch = self.clone();
        move |_: Event| {
            switch.calls.fetch_add(1, Ordering::SeqCst);
            let fails = switch.fails.load(Ordering::SeqCst);
            async move { if fails { Err("told to fail") } else { Ok(()) } }
        }
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// A circuit that opens at the first failure.
fn touchy() -> BreakerConfig {
    BreakerConfig::builder().min_samples(1).build().unwrap()
}

/// Two subscriptions in this order; the circuit of `touchy` is about to be half-open.
async fn half_open(name: &str) -> (World, Switch, Switch) {
    let world = World::new().await;
    let (first, second) = (Switch::default(), Switch::default());
    for (other, switch) in [("first", &first), ("second", &second)] {
        let subscribe = world.bus.subscribe("*", switch.handler()).name(other);
        let subscribe = if other == name { subscribe.breaker(touchy()) } else { subscribe };
        subscribe.register().unwrap();
        switch.fail(other == name);
    }
    world.bus.start().await.unwrap();
    world.publish_once("x").await;
    assert!(matches!(world.subscription(name).breaker(), BreakerSnapshot::Open { .. }));
    world.pass(30 * SECOND).await;
    assert!(matches!(world.subscription(name).breaker(), BreakerSnapshot::HalfOpen { .. }));
    first.fail(false);
    second.fail(false);
    (world, first, second)
}

#[tokio::test]
async fn a_half_open_circuit_allows_one_probe() {
    let world = World::new().await;
    let (calls, clock) = (Arc::new(AtomicU32::new(0)), world.time.clock());
    let counter = Arc::clone(&calls);
    world
        .bus
        .subscribe("*", move |_: Event| {
            let (call, clock) = (counter.fetch_add(1, Ordering::SeqCst) + 1, clock.clone());
            async move {
                if call == 1 {
                    return Err("opens the circuit");
                }
                clock.sleep(5 * SECOND).await;
                Ok(())
            }
        })
        .breaker(touchy())
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    world.publish_once("x").await;
    // Both are parked and due when the circuit becomes half-open.
    let parked = [world.enqueue("x").await, world.enqueue("x").await];
    world.pass(34 * SECOND).await;
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the failure and one probe, for four seconds already");
    world.pass(30 * SECOND).await;
    for id in parked {
        assert_eq!(world.status(id).await, EventStatus::Done, "the other one after the probe");
    }
}

#[tokio::test]
async fn a_half_open_circuit_behind_a_failing_subscription_gets_its_probe_later() {
    let (world, first, second) = half_open("second").await;
    first.fail(true);
    let id = world.enqueue("x").await;
    world.pass(SECOND / 2).await;
    assert_eq!(second.calls(), 1, "not reached");
    first.fail(false);
    world.pass(SECOND).await;
    assert_eq!((second.calls(), world.status(id).await), (2, EventStatus::Done));
}

#[tokio::test]
async fn a_subscription_that_ran_before_the_failure_has_a_success() {
    let (world, _, second) = half_open("first").await;
    second.fail(true);
    world.publish_once("x").await;
    assert_eq!(world.subscription("first").breaker(), BreakerSnapshot::Closed, "its probe succeeded");
}

#[tokio::test]
async fn a_subscription_behind_the_failure_has_no_outcome() {
    let (world, first, _) = half_open("second").await;
    first.fail(true);
    world.publish_once("x").await;
    // A success would have closed it, a failure would have opened it.
    let breaker = world.subscription("second").breaker();
    assert_eq!(breaker, BreakerSnapshot::HalfOpen { until: world.time.now() });
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<RetryLogEntry>>>);

impl AuditSink for Log {
    fn record(&self, _: &AuditEvent) -> Result<(), AuditError> {
        Ok(())
    }

    fn log(&self, entry: &RetryLogEntry) -> Result<(), AuditError> {
        self.0.lock().unwrap().push(entry.clone());
        Ok(())
    }
}

#[tokio::test]
async fn an_attempt_that_ended_with_the_process_has_its_log_entry() {
    let world = World::with(|builder| builder.shutdown_timeout(Duration::ZERO)).await;
    world.bus.subscribe("*", hangs).name("s").register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.enqueue("x").await;
    world.pass(SECOND).await;
    let log = Log::default();
    let world = world.reopened(|builder| builder.audit(log.clone())).await;
    let subscription = world.bus.subscribe("*", works).name("s").register().unwrap();
    world.bus.start().await.unwrap();
    let entries = log.0.lock().unwrap();
    let [entry] = entries.as_slice() else { panic!("one entry: {entries:?}") };
    assert_eq!(
        (entry.event_id.as_str(), entry.subscription_id.as_str()),
        (&*id.to_string(), subscription.id())
    );
    assert_eq!((entry.attempt, entry.max_attempts), (1, 4));
    assert_eq!(entry.error, "process ended during the attempt");
}

#[tokio::test]
async fn the_retry_success_rate_is_kept_per_event_type() {
    let world = World::new().await;
    let never = BreakerConfig::builder().min_samples(u32::MAX).build().unwrap();
    world
        .bus
        .subscribe("order", |event: Event| async move {
            let works_at: u32 = event.json()?;
            if event.attempt() == works_at { Ok(()) } else { Err(BoxError::from("not yet")) }
        })
        .breaker(never)
        .register()
        .unwrap();
    world.bus.subscribe("user", works).register().unwrap();
    world.bus.start().await.unwrap();
    for (event_type, works_at) in [("order", 2), ("order", 99), ("user", 1)] {
        let publish = world.bus.publish(event_type, &works_at);
        world.time.drive(async { publish.await }).await.unwrap();
    }
    let metrics = world.bus.metrics().await.unwrap().by_type;
    assert_eq!(metrics["order"].success_after_retry_rate(), Some(0.5));
    assert_eq!(metrics["user"].success_after_retry_rate(), None, "nothing was retried");
}

/// Crates that network code in Rust depends on.
#[test]
fn the_bus_has_no_network_dependency() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "redrive", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p} {f}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.contains("rusqlite v"), "{}", String::from_utf8_lossy(&output.stderr));
    for line in tree.lines() {
        let (name, features) = line.split_once(' ').unwrap();
        let networked = ["mio", "socket2", "async-io", "hyper", "ureq", "curl", "rustls", "native-tls"];
        assert!(!networked.contains(&name), "{line}");
        assert!(name != "tokio" || !features.split([',', ' ']).any(|feature| feature == "net"), "{line}");
    }
    for krate in ["redrive", "redrive-store", "redrive-retry"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("src");
        for source in sources(&folder) {
            let text = std::fs::read_to_string(&source).unwrap();
            for socket in ["TcpStream", "TcpListener", "UdpSocket", "UnixStream", "UnixListener"] {
                assert!(!text.contains(socket), "{socket} in {}", source.display());
            }
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn a_paused_dispatcher_starts_nothing_until_it_resumes() {
    let world = World::new().await;
    let handler = Switch::default();
    world.bus.subscribe("*", handler.handler()).register().unwrap();
    world.bus.start().await.unwrap();
    world.publish("x").await;
    let dispatcher: redrive::dispatcher::Dispatcher = world.bus.dispatcher();
    dispatcher.pause();
    let waiting = [world.enqueue("x").await, world.enqueue("x").await];
    world.pass(60 * SECOND).await;
    assert_eq!((handler.calls(), dispatcher.in_flight(), dispatcher.is_paused()), (1, 0, true));
    assert_eq!(world.status(waiting[0]).await, EventStatus::Pending);
    dispatcher.resume();
    world.pass(SECOND).await;
    assert_eq!((handler.calls(), dispatcher.in_flight(), dispatcher.is_paused()), (3, 0, false));
    assert_eq!(world.status(waiting[0]).await, EventStatus::Done);
}

#[tokio::test]
async fn a_subscription_has_name_pattern_and_settings() {
    let world = World::new().await;
    let handle = world
        .bus
        .subscribe("order.*", works)
        .name("shipping")
        .timeout(10 * SECOND)
        .retry(RetryOverride::new().max_retries(5))
        .register()
        .unwrap();
    let subscription: Arc<Subscription> = world.subscription("shipping");
    assert_eq!((subscription.id(), &*subscription.event_type().to_string()), (handle.id(), "order.*"));
    assert_eq!((subscription.timeout(), subscription.created_at()), (10 * SECOND, world.time.now()));
    let policy: RetryPolicy = subscription.retry().unwrap().apply_to(&exact()).unwrap();
    assert_eq!(policy.max_attempts(), 6);
}

#[tokio::test]
async fn a_subscription_has_a_random_uuid() {
    let world = World::new().await;
    let id: EventId = world.bus.subscribe("*", works).register().unwrap().id().parse().unwrap();
    assert_eq!(id.as_uuid().get_version_num(), 4);
}

#[tokio::test]
async fn a_subscription_keeps_its_creation_time() {
    let world = World::new().await;
    let made_at = world.time.now();
    world.bus.subscribe("*", works).name("s").register().unwrap();
    world.bus.start().await.unwrap();
    world.time.advance(DAY);
    let world = world.reopened(|builder| builder).await;
    world.bus.subscribe("*", works).name("s").register().unwrap();
    world.bus.start().await.unwrap();
    assert_eq!(world.bus.store().subscriptions().await.unwrap()[0].created_at, made_at);
    assert_eq!(world.subscription("s").created_at(), made_at);
}

#[tokio::test]
async fn no_delay_exceeds_the_maximum() {
    let policy = RetryPolicy::builder().jitter(Jitter::None).max_delay(Duration::from_millis(1500));
    let world = World::with(|builder| builder.policy(policy.build().unwrap())).await;
    world.bus.subscribe("*", fails).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.publish("x").await;
    let event = world.bus.store().event(id).await.unwrap();
    let began = |attempt: &redrive_store::AttemptRow| attempt.started_at.since(event.created_at).as_millis();
    assert_eq!(event.attempts.iter().map(began).collect::<Vec<_>>(), [0, 1000, 2500, 4000]);
}

#[tokio::test]
async fn dead_events_of_a_certain_age_are_purged() {
    let world = World::new().await;
    world.bus.subscribe("*", fails).register().unwrap();
    world.bus.start().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(world.publish_once("x").await);
        world.time.advance(DAY);
    }
    // They are 4, 3, 2 days and 1 day old.
    assert_eq!(world.bus.dlq().purge_older_than(3 * DAY).await.unwrap(), 2);
    let left = world.bus.dlq().list(DlqFilter::default(), DlqPage::default()).await.unwrap();
    assert_eq!(left.iter().map(|dead| dead.id).collect::<Vec<_>>(), [ids[3], ids[2]]);
}

#[test]
fn every_character_of_a_pattern_but_the_star_matches_itself() {
    for c in ['.', '?', '[', ']', '+', '(', '|', '^', '$', '\\', '{', '%', '_'] {
        let pattern: Pattern = format!("user{c}created").parse().unwrap();
        assert!(pattern.matches(&format!("user{c}created")), "{c} matches itself");
        for other in ["userxcreated", "usercreated", "userrcreated", "user"] {
            assert!(!pattern.matches(other), "{c} does not match as {other}");
        }
    }
}

#[tokio::test]
async fn an_event_that_waits_for_its_retry_is_processing() {
    let world = World::new().await;
    world.bus.subscribe("*", fails).register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.enqueue("x").await;
    world.pass(SECOND / 2).await;
    let event = world.bus.store().event(id).await.unwrap();
    assert_eq!((event.status, event.retry_count), (EventStatus::Processing, 1));
    assert_eq!(world.bus.dispatcher().in_flight(), 0, "and nobody handles it");
}

#[tokio::test]
async fn a_dead_event_is_the_event_that_was_published() {
    let world = World::new().await;
    world.bus.subscribe("*", |_: Event| async { Err("no".permanent()) }).register().unwrap();
    world.bus.start().await.unwrap();
    let (id, published_at) = (EventId::random(), world.time.now());
    let publish = world.bus.publish("order.created", &json!({"order": [1, "ü", null]})).id(id);
    let publish = publish.metadata("tenant", "t-1").delay(SECOND);
    world.time.drive(async { publish.await }).await.unwrap();
    let dead = world.bus.dlq().get(id).await.unwrap().remove(0);
    assert_eq!((dead.id, dead.event_type.as_str()), (id, "order.created"));
    assert_eq!(dead.payload.get(), r#"{"order":[1,"ü",null]}"#);
    assert_eq!(dead.metadata.into_iter().collect::<Vec<_>>(), [("tenant".to_owned(), "t-1".to_owned())]);
    assert_eq!(dead.created_at, published_at);
}

#[tokio::test]
async fn a_publish_during_the_shutdown_is_refused() {
    let world = World::new().await;
    let clock = world.time.clock();
    world
        .bus
        .subscribe("*", move |_: Event| {
            let clock = clock.clone();
            async move {
                clock.sleep(10 * SECOND).await;
                Ok::<_, BoxError>(())
            }
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    world.enqueue("x").await;
    let publish_meanwhile = async {
        world.time.clock().sleep(5 * SECOND).await;
        assert!(matches!(world.bus.publish("x", &1).await, Err(BusError::Shutdown(_))));
        assert!(matches!(world.bus.publish("x", &1).enqueue().await, Err(BusError::Shutdown(_))));
        assert!(matches!(world.bus.publish_batch([("x", &1)]).await, Err(BusError::Shutdown(_))));
    };
    let (ended, ()) = world.time.drive(async { tokio::join!(world.bus.shutdown(), publish_meanwhile) }).await;
    ended.unwrap();
}

#[tokio::test]
async fn a_shutdown_waits_for_thirty_seconds_by_default_and_then_closes_the_store() {
    let world = World::new().await;
    world.bus.subscribe("*", hangs).timeout(DAY).register().unwrap();
    world.bus.start().await.unwrap();
    world.enqueue("x").await;
    world.pass(SECOND).await;
    let began = world.time.now();
    world.time.drive(world.bus.shutdown()).await.unwrap();
    assert_eq!(world.time.now().since(began), 30 * SECOND);
    // Released although the old bus still exists.
    let again = world.store_under_test.open_at(&world.time, EventBus::builder()).await;
    assert_eq!(again.start().await.unwrap(), 1, "the interrupted event continues");
}

struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_shutdown_timeout_drops_running_handlers() {
    let world = World::with(|builder| builder.shutdown_timeout(SECOND)).await;
    let is_dropped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_dropped);
    world
        .bus
        .subscribe("*", move |event: Event| {
            let flag = Flag(Arc::clone(&flag));
            async move {
                let _flag = flag;
                hangs(event).await
            }
        })
        .register()
        .unwrap();
    world.bus.start().await.unwrap();
    world.enqueue("x").await;
    world.pass(SECOND).await;
    assert!(!is_dropped.load(Ordering::SeqCst), "it hangs");
    world.time.drive(world.bus.shutdown()).await.unwrap();
    assert!(is_dropped.load(Ordering::SeqCst));
}

/// Typical outage: several events fail at once and open the circuit.
#[tokio::test]
async fn attempts_before_and_after_parking_add_up() {
    let world = World::new().await;
    let handler = Switch::default();
    handler.fail(true);
    world.bus.subscribe("*", handler.handler()).register().unwrap();
    world.bus.start().await.unwrap();
    let ids = [
        world.enqueue("x").await,
        world.enqueue("x").await,
        world.enqueue("x").await,
        world.enqueue("x").await,
    ];
    world.pass(3600 * SECOND).await;
    for id in ids {
        let dead = world.bus.dlq().get(id).await.unwrap().remove(0);
        assert_eq!(
            (dead.attempts.len(), dead.errors.len()),
            (4, 4),
            "three retries, and every error of them"
        );
    }
}
