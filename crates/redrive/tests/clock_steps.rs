//! Steps of the machine's wall clock: every wait keeps its length, and only a schedule follows the wall clock.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive::pull::{PullQueue, PullRequest};
use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, ClassifyError, Clock, Failure, Jitter, RetryPolicy, Timestamp, VirtualTime};
use redrive::testing::TestBus;
use redrive::{Event, EventBus, EventBusBuilder, EventId, Limits, Tracking};
use tokio::sync::mpsc;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Two hours back, and two hours forward.
const STEPS_MS: [i64; 2] = [-7_200_000, 7_200_000];

/// A retry after four seconds, and then every four seconds.
fn every_four_seconds(builder: EventBusBuilder) -> EventBusBuilder {
    let policy = RetryPolicy::builder()
        .max_attempts(5)
        .base_delay(4 * SECOND)
        .max_delay(4 * SECOND)
        .jitter(Jitter::None)
        .build();
    builder.policy(policy.unwrap())
}

/// Lets time pass. Unlike `advance`, does not wait for the end of running handlers.
async fn pass(bus: &TestBus, duration: Duration) {
    bus.run(bus.time().clock().sleep(duration)).await;
}

/// The steady times at which a handler was called.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Timestamp>>>);

impl Calls {
    /// Adds a call; returns its number, from 1.
    fn add(&self, time: &VirtualTime) -> usize {
        let mut calls = self.0.lock().unwrap();
        calls.push(time.now());
        calls.len()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The time between the first call and the last, rounded down to tenths of a second.
    fn tenths(&self) -> u128 {
        let calls = self.0.lock().unwrap();
        calls.last().unwrap().since(calls[0]).as_millis() / 100
    }
}

#[tokio::test]
async fn a_retry_keeps_its_delay() {
    for step in STEPS_MS {
        let bus = TestBus::with(every_four_seconds).await.unwrap();
        let (calls, time) = (Calls::default(), bus.time().clone());
        let seen = calls.clone();
        bus.subscribe("order.*", move |_: Event| {
            let is_first = seen.add(&time) == 1;
            async move { if is_first { Err("no") } else { Ok(()) } }
        })
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus.publish("order.paid", &1).enqueue().await.unwrap();
        bus.advance(SECOND).await;
        assert_eq!(calls.count(), 1);
        bus.time().step_wall_clock(step);
        bus.advance(2 * SECOND).await;
        assert_eq!(calls.count(), 1, "not early after a step of {step} ms");
        bus.advance(2 * SECOND).await;
        assert_eq!((calls.count(), calls.tenths()), (2, 40), "on time after a step of {step} ms");
        bus.drain().await;
    }
}

#[tokio::test]
async fn a_due_event_stays_due() {
    let bus = TestBus::with(|builder| builder.in_flight(1)).await.unwrap();
    let (calls, time) = (Calls::default(), bus.time().clone());
    let seen = calls.clone();
    bus.subscribe("order.*", move |_: Event| {
        seen.add(&time);
        let clock = time.clock();
        async move {
            clock.sleep(10 * SECOND).await;
            Ok::<_, BoxError>(())
        }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    for n in 0..4 {
        bus.publish("order.paid", &n).enqueue().await.unwrap();
    }
    pass(&bus, SECOND).await;
    assert_eq!(calls.count(), 1, "the others wait for a slot");
    bus.time().step_wall_clock(STEPS_MS[0]);
    pass(&bus, 31 * SECOND).await;
    assert_eq!(calls.count(), 4);
    bus.drain().await;
}

#[tokio::test]
async fn a_schedule_keeps_its_date() {
    let bus = TestBus::new().await.unwrap();
    let (calls, time) = (Calls::default(), bus.time().clone());
    let seen = calls.clone();
    bus.subscribe("order.*", move |_: Event| {
        seen.add(&time);
        async { Ok::<_, BoxError>(()) }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    let in_an_hour = bus.store().clock().now() + HOUR;
    bus.publish("order.paid", &1).due_at(in_an_hour).enqueue().await.unwrap();
    bus.advance(SECOND).await;
    bus.time().step_wall_clock(-3_600_000);
    bus.advance(HOUR + 60 * SECOND).await;
    assert_eq!(calls.count(), 0, "by the wall clock it is due in another hour");
    bus.time().step_wall_clock(3_600_000);
    bus.advance(SECOND).await;
    assert_eq!(calls.count(), 1, "due at once");
}

#[tokio::test]
async fn a_delayed_event_keeps_its_delay() {
    for step in STEPS_MS {
        let bus = TestBus::new().await.unwrap();
        let (calls, time) = (Calls::default(), bus.time().clone());
        let seen = calls.clone();
        bus.subscribe("order.*", move |_: Event| {
            seen.add(&time);
            async { Ok::<_, BoxError>(()) }
        })
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus.publish("order.paid", &1).delay(10 * SECOND).enqueue().await.unwrap();
        bus.advance(SECOND).await;
        bus.time().step_wall_clock(step);
        bus.advance(8 * SECOND).await;
        assert_eq!(calls.count(), 0, "not early after a step of {step} ms");
        bus.advance(SECOND).await;
        assert_eq!(calls.count(), 1, "on time after a step of {step} ms");
    }
}

async fn failed_attempts(bus: &TestBus, id: EventId) -> u32 {
    bus.store().event(id).await.unwrap().retry_count
}

#[tokio::test]
async fn a_lease_of_a_pull_consumer_keeps_its_length() {
    for step in STEPS_MS {
        let bus = TestBus::with(|builder| every_four_seconds(builder).tracking(Tracking::PerSubscription))
            .await
            .unwrap();
        let queue = PullQueue::new();
        bus.subscribe_queue("order.*", &queue).name("billing").register().unwrap();
        bus.start().await.unwrap();
        let id = bus.publish("order.paid", &1).enqueue().await.unwrap();
        let request = PullRequest { limit: 1, lease: 60 * SECOND, wait: SECOND };
        let leased = bus.run(queue.pull(request)).await.pop().unwrap();
        bus.time().step_wall_clock(step);
        pass(&bus, 30 * SECOND).await;
        assert_eq!(failed_attempts(&bus, id).await, 0, "not early after a step of {step} ms");
        let until = queue.extend(leased.token, 60 * SECOND).await.unwrap();
        let shown = until.since(bus.store().clock().now());
        assert_eq!(shown, 60 * SECOND, "told by the wall clock of now");
        pass(&bus, 61 * SECOND).await;
        assert_eq!(failed_attempts(&bus, id).await, 1, "ended on time after a step of {step} ms");
    }
}

#[tokio::test]
async fn an_open_circuit_keeps_its_length() {
    for step in STEPS_MS {
        let bus = TestBus::with(every_four_seconds).await.unwrap();
        let (calls, time) = (Calls::default(), bus.time().clone());
        let seen = calls.clone();
        bus.subscribe("order.*", move |_: Event| {
            let is_first = seen.add(&time) == 1;
            async move { if is_first { Err("no") } else { Ok(()) } }
        })
        .breaker(BreakerConfig::builder().min_samples(1).open_for(30 * SECOND).build().unwrap())
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus.publish("order.paid", &1).enqueue().await.unwrap();
        // The retry after four seconds finds the circuit open and is parked.
        bus.advance(10 * SECOND).await;
        bus.time().step_wall_clock(step);
        bus.advance(19 * SECOND).await;
        assert_eq!(calls.count(), 1, "not early after a step of {step} ms");
        bus.advance(2 * SECOND).await;
        assert_eq!(calls.count(), 2, "on time after a step of {step} ms");
        bus.drain().await;
    }
}

#[tokio::test]
async fn a_retry_after_keeps_its_length() {
    for step in STEPS_MS {
        let bus = TestBus::with(|builder| every_four_seconds(builder).tracking(Tracking::PerSubscription))
            .await
            .unwrap();
        let (calls, time) = (Calls::default(), bus.time().clone());
        let seen = calls.clone();
        bus.subscribe("order.*", move |_: Event| {
            let is_first = seen.add(&time) == 1;
            async move {
                if is_first { Err::<(), Failure>("slow down".retry_after(60 * SECOND)) } else { Ok(()) }
            }
        })
        .limits(Limits { concurrency: 1, per_second: None })
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus.publish("order.paid", &1).enqueue().await.unwrap();
        bus.advance(10 * SECOND).await;
        bus.publish("order.paid", &2).enqueue().await.unwrap();
        bus.time().step_wall_clock(step);
        bus.advance(49 * SECOND).await;
        assert_eq!(calls.count(), 1, "not early after a step of {step} ms");
        bus.advance(3 * SECOND).await;
        assert_eq!(calls.count(), 3, "on time after a step of {step} ms");
        bus.drain().await;
    }
}

async fn open(file: &Path, clock: Clock, calls: &Calls, time: &VirtualTime) -> EventBus {
    let bus = every_four_seconds(EventBus::builder()).clock(clock).open(file).await.unwrap();
    let (calls, time) = (calls.clone(), time.clone());
    bus.subscribe("order.*", move |_: Event| {
        let is_first = calls.add(&time) == 1;
        async move { if is_first { Err("no") } else { Ok(()) } }
    })
    .register()
    .unwrap();
    bus.start().await.unwrap();
    bus
}

#[tokio::test]
async fn a_clock_that_is_set_back_between_two_runs_delays_no_retry() {
    let (folder, time, calls) = (tempfile::tempdir().unwrap(), VirtualTime::new(), Calls::default());
    let file = folder.path().join("events.db");
    let bus = TestBus::of(open(&file, time.clock(), &calls, &time).await, time.clone());
    bus.publish("order.paid", &1).enqueue().await.unwrap();
    bus.advance(SECOND).await;
    bus.run(bus.shutdown()).await.unwrap();
    time.step_wall_clock(STEPS_MS[0]);
    let bus = TestBus::of(open(&file, time.clock(), &calls, &time).await, time.clone());
    bus.advance(5 * SECOND).await;
    assert_eq!(calls.count(), 2, "at most its whole delay later");
    bus.run(bus.shutdown()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_bus_notices_that_the_clock_was_set() {
    for step in STEPS_MS {
        let folder = tempfile::tempdir().unwrap();
        let ahead_ms = Arc::new(AtomicI64::new(0));
        let policy = RetryPolicy::builder().base_delay(2 * SECOND).jitter(Jitter::None).build().unwrap();
        let bus = EventBus::builder().policy(policy).clock(Clock::with_offset(Arc::clone(&ahead_ms)));
        let bus = bus.open(folder.path().join("events.db")).await.unwrap();
        let (seen, mut calls) = mpsc::unbounded_channel();
        bus.subscribe("order.*", move |event: Event| {
            let _ = seen.send(Instant::now());
            async move { if event.attempt() == 1 { Err("no") } else { Ok(()) } }
        })
        .register()
        .unwrap();
        bus.start().await.unwrap();
        bus.publish("order.paid", &1).enqueue().await.unwrap();
        let soon = Duration::from_secs(20);
        let first = tokio::time::timeout(soon, calls.recv()).await.unwrap().unwrap();
        ahead_ms.store(step, Ordering::Relaxed);
        let second = tokio::time::timeout(soon, calls.recv()).await.expect("not late").unwrap();
        assert!(second - first > SECOND, "not early after a step of {step} ms");
        bus.shutdown().await.unwrap();
    }
}
