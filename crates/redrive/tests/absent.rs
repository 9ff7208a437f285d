//! Events that no subscription of a living process takes: they wait for a subscription on record, or are dead letters.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::events::EventStatus;
use redrive::handler::Handler;
use redrive::retry::{BoxError, Jitter, RetryPolicy, VirtualTime};
use redrive::{Event, EventBus, EventBusBuilder, EventId, Snooze, Tracking, Unmatched};

use crate::test_store::TestStore;

const SECOND: Duration = Duration::from_secs(1);

struct World {
    time: VirtualTime,
    bus: EventBus,
    place: TestStore,
    calls: Arc<AtomicU32>,
}

fn settings() -> EventBusBuilder {
    EventBus::builder().policy(RetryPolicy::builder().jitter(Jitter::None).build().unwrap())
}

impl World {
    async fn with(change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        let (time, place) = (VirtualTime::new(), TestStore::new());
        let bus = place.open_at(&time, change(settings())).await;
        World { time, bus, place, calls: Arc::default() }
    }

    async fn reopened(self, change: impl FnOnce(EventBusBuilder) -> EventBusBuilder) -> Self {
        self.time.drive(self.bus.shutdown()).await.unwrap();
        let bus = self.place.open_at(&self.time, change(settings())).await;
        World { bus, ..self }
    }

    async fn pass(&self, duration: Duration) {
        self.time.drive(self.time.clock().sleep(duration)).await;
    }

    async fn enqueue(&self, event_type: &str) -> EventId {
        self.bus.publish(event_type, &1).enqueue().await.unwrap()
    }

    async fn status(&self, id: EventId) -> EventStatus {
        self.bus.store().event(id).await.unwrap().status
    }

    /// Reason and errors of the only dead letter.
    async fn dead(&self, id: EventId) -> (String, Vec<String>) {
        let dead = self.bus.dlq().get(id).await.unwrap().remove(0);
        (dead.reason.clone(), dead.errors)
    }

    fn counting(&self) -> impl Handler + use<> {
        let calls = Arc::clone(&self.calls);
        move |_: Event| {
            calls.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, BoxError>(()) }
        }
    }
}

async fn fails(_: Event) -> Result<(), BoxError> {
    Err("no stock".into())
}

#[tokio::test]
async fn an_event_that_failed_is_dead_when_its_subscription_is_removed() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        let shipping = world.bus.subscribe("order.*", fails).name("shipping").register().unwrap();
        world.bus.start().await.unwrap();
        let id = world.enqueue("order.created").await;
        world.pass(SECOND / 2).await;
        assert!(shipping.unsubscribe().await.unwrap());
        world.pass(20 * SECOND).await;
        let expected = ("no_subscription".to_owned(), vec!["no stock".to_owned()]);
        assert_eq!((world.status(id).await, world.dead(id).await), (EventStatus::Dlq, expected));
        assert_eq!(world.bus.metrics().await.unwrap().unmatched, 0);
    }
}

#[tokio::test]
async fn an_event_waits_for_a_subscription_on_record_that_registers_after_the_start() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
        world.bus.start().await.unwrap();
        let world = world.reopened(|builder| builder.tracking(tracking)).await;
        let before = world.enqueue("order.created").await;
        world.bus.start().await.unwrap();
        let after = world.enqueue("order.created").await;
        world.pass(60 * SECOND).await;
        for id in [before, after] {
            assert_ne!(world.status(id).await, EventStatus::Done, "it waits");
        }
        let metrics = world.bus.metrics().await.unwrap();
        assert!(metrics.orphaned > 0 && metrics.unmatched == 0, "and is counted: {metrics:?}");
        world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
        world.pass(15 * SECOND).await;
        for id in [before, after] {
            assert_eq!(world.status(id).await, EventStatus::Done);
        }
        assert_eq!(world.calls.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn a_subscription_that_registers_right_after_the_start_waits_for_its_events_a_second_at_most() {
    let world = World::with(|builder| builder).await;
    world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
    world.bus.start().await.unwrap();
    let world = world.reopened(|builder| builder).await;
    let id = world.enqueue("order.created").await;
    world.bus.start().await.unwrap();
    world.pass(SECOND / 10).await;
    world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
    world.pass(SECOND).await;
    assert_eq!(world.status(id).await, EventStatus::Done);
}

#[tokio::test]
async fn a_recovered_event_waits_for_its_subscription_and_is_dead_once_that_is_removed_from_the_record() {
    let world = World::with(|builder| builder.shutdown_timeout(Duration::ZERO)).await;
    let hangs = |_: Event| std::future::pending::<Result<(), BoxError>>();
    let id = world.bus.subscribe("order.*", hangs).name("shipping").register().unwrap().id().to_owned();
    world.bus.start().await.unwrap();
    let event = world.enqueue("order.created").await;
    world.pass(SECOND).await;
    let world = world.reopened(|builder| builder).await;
    assert_eq!(world.bus.start().await.unwrap(), 1, "the interrupted attempt");
    world.pass(20 * SECOND).await;
    assert!(!matches!(world.status(event).await, EventStatus::Done | EventStatus::Dlq), "it waits");
    assert!(world.bus.unsubscribe(&id).await.unwrap(), "a subscription that is only on record");
    assert!(world.bus.subscriptions().is_empty() && !world.bus.unsubscribe(&id).await.unwrap());
    world.pass(20 * SECOND).await;
    let expected = ("no_subscription".to_owned(), vec!["process ended during the attempt".to_owned()]);
    assert_eq!((world.status(event).await, world.dead(event).await), (EventStatus::Dlq, expected));
}

#[tokio::test]
async fn a_redriven_event_that_nobody_takes_is_dead_again() {
    let world = World::with(|builder| builder).await;
    let shipping = world.bus.subscribe("order.*", fails).name("shipping").register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.enqueue("order.created").await;
    world.pass(60 * SECOND).await;
    assert_eq!(world.status(id).await, EventStatus::Dlq);
    shipping.unsubscribe().await.unwrap();
    world.bus.dlq().retry(id).await.unwrap();
    world.pass(SECOND).await;
    assert_eq!(
        (world.status(id).await, world.dead(id).await.0.as_str()),
        (EventStatus::Dlq, "no_subscription")
    );
}

#[tokio::test]
async fn an_event_that_nothing_on_record_matches_is_done_or_dead_as_configured() {
    for (unmatched, status) in
        [(Unmatched::Done, EventStatus::Done), (Unmatched::DeadLetter, EventStatus::Dlq)]
    {
        let world = World::with(|builder| builder.unmatched(unmatched)).await;
        world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
        world.bus.start().await.unwrap();
        let world = world.reopened(|builder| builder.unmatched(unmatched)).await;
        world.bus.start().await.unwrap();
        let id = world.enqueue("user.created").await;
        world.pass(SECOND).await;
        assert_eq!(world.status(id).await, status);
        if status == EventStatus::Dlq {
            let error = "no subscription matches user.created".to_owned();
            assert_eq!(world.dead(id).await, ("no_subscription".to_owned(), vec![error]));
        }
    }
}

#[tokio::test]
async fn a_publisher_does_not_wait_for_a_subscription_that_is_only_on_record() {
    let world = World::with(|builder| builder).await;
    world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
    world.bus.start().await.unwrap();
    let world = world.reopened(|builder| builder).await;
    world.bus.start().await.unwrap();
    let began = world.time.now();
    let id = world.time.drive(async { world.bus.publish("order.created", &1).await }).await.unwrap();
    assert!(world.time.now().since(began) <= SECOND);
    assert_eq!(world.status(id).await, EventStatus::Pending);
}

#[tokio::test]
async fn an_event_that_waited_for_a_subscription_is_dead_when_that_is_removed_from_the_record() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        let shipping = world.bus.subscribe("order.*", world.counting()).name("shipping").register().unwrap();
        let id = shipping.id().to_owned();
        world.bus.start().await.unwrap();
        let world = world.reopened(|builder| builder.tracking(tracking)).await;
        world.bus.start().await.unwrap();
        let event = world.enqueue("order.created").await;
        world.pass(20 * SECOND).await;
        assert_eq!(world.status(event).await, EventStatus::Pending, "it waits");
        assert!(world.bus.unsubscribe(&id).await.unwrap());
        world.pass(20 * SECOND).await;
        assert_eq!(
            (world.status(event).await, world.dead(event).await.0.as_str()),
            (EventStatus::Dlq, "no_subscription")
        );
        assert_eq!(world.bus.metrics().await.unwrap().unmatched, 0);
    }
}

#[tokio::test]
async fn a_snoozed_event_is_dead_when_its_subscription_is_removed() {
    for tracking in [Tracking::Event, Tracking::PerSubscription] {
        let world = World::with(|builder| builder.tracking(tracking)).await;
        let snoozes = |_: Event| async { Err::<(), _>(Snooze::new(10 * SECOND)) };
        let shipping = world.bus.subscribe("order.*", snoozes).name("shipping").register().unwrap();
        world.bus.start().await.unwrap();
        let event = world.enqueue("order.created").await;
        world.pass(SECOND).await;
        assert!(shipping.unsubscribe().await.unwrap());
        world.pass(20 * SECOND).await;
        assert_eq!(
            (world.status(event).await, world.dead(event).await.0.as_str()),
            (EventStatus::Dlq, "no_subscription")
        );
    }
}

#[tokio::test]
async fn a_redriven_event_is_dead_again_after_a_step_of_the_clock() {
    let world = World::with(|builder| builder).await;
    let shipping = world.bus.subscribe("order.*", fails).name("shipping").register().unwrap();
    world.bus.start().await.unwrap();
    let id = world.enqueue("order.created").await;
    world.pass(60 * SECOND).await;
    assert_eq!(world.status(id).await, EventStatus::Dlq);
    shipping.unsubscribe().await.unwrap();
    world.time.step_wall_clock(-7_200_000);
    world.bus.dlq().retry(id).await.unwrap();
    world.pass(3 * SECOND).await;
    assert_eq!(
        (world.status(id).await, world.dead(id).await.0.as_str()),
        (EventStatus::Dlq, "no_subscription")
    );
}
