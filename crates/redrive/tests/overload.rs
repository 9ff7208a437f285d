//! A receiver that answers that it is overloaded, simulated on virtual time: its subscription finds the receiver's own limit.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::retry::{Clock, Failure, FailureClass, RetryPolicy, Timestamp};
use redrive::testing::TestBus;
use redrive::{Event, Limits, Tracking};

/// Time that the receiver takes for an answer.
const LATENCY: Duration = Duration::from_millis(20);

/// Simulated receiver with a limit of requests in each second; it answers 429 above it, without `Retry-After`.
#[derive(Clone)]
struct Receiver {
    clock: Clock,
    limit: Arc<AtomicUsize>,
    /// When each request arrived, and whether it was accepted.
    requests: Arc<Mutex<Vec<(Timestamp, bool)>>>,
}

impl Receiver {
    fn new(clock: Clock, limit: usize) -> Self {
        Receiver { clock, limit: Arc::new(AtomicUsize::new(limit)), requests: Arc::default() }
    }

    async fn answer(self) -> Result<(), Failure> {
        let now = self.clock.now();
        let second = |at: Timestamp| at.as_millis() / 1000;
        let is_accepted = {
            let mut requests = self.requests.lock().unwrap();
            let before = requests.iter().rev().take_while(|(at, _)| second(*at) == second(now)).count();
            let is_accepted = before < self.limit.load(Ordering::SeqCst);
            requests.push((now, is_accepted));
            is_accepted
        };
        self.clock.sleep(LATENCY).await;
        if is_accepted {
            return Ok(());
        }
        Err(Failure::new("429").with_class(FailureClass::Throttled { retry_after: None }))
    }

    /// Requests and accepted requests per second in this time.
    fn rates(&self, from: Timestamp, to: Timestamp) -> (f64, f64) {
        let requests = self.requests.lock().unwrap();
        let within = || requests.iter().filter(|(at, _)| *at >= from && *at < to);
        let (all, accepted) = (within().count(), within().filter(|(_, accepted)| *accepted).count());
        let seconds = to.since(from).as_secs_f64();
        #[allow(clippy::cast_precision_loss)]
        let rate = |count: usize| count as f64 / seconds;
        (rate(all), rate(accepted))
    }
}

async fn bus_with(limits: Limits, limit_of_receiver: usize) -> (TestBus, Receiver) {
    let bus =
        TestBus::with(|builder| builder.tracking(Tracking::PerSubscription).policy(RetryPolicy::webhook()))
            .await
            .unwrap();
    let receiver = Receiver::new(bus.time().clock(), limit_of_receiver);
    let answering = receiver.clone();
    bus.subscribe("order.*", move |_: Event| answering.clone().answer())
        .name("hook")
        .limits(limits)
        .register()
        .unwrap();
    bus.start().await.unwrap();
    (bus, receiver)
}

async fn publish(bus: &TestBus, count: u32) {
    let numbers: Vec<u32> = (0..count).collect();
    for some in numbers.chunks(500) {
        bus.publish_batch(some.iter().map(|n| ("order.paid", n))).await.unwrap();
    }
}

#[tokio::test]
async fn an_overloaded_receiver_gets_little_more_than_its_limit_and_throughput_returns() {
    let (bus, receiver) = bus_with(Limits { concurrency: 16, per_second: None }, 10).await;
    publish(&bus, 6000).await;
    bus.advance(Duration::from_secs(60)).await;
    let reduced = bus.subscriptions()[0].reduced_rate();
    assert!(reduced.is_some_and(|rate| (2.0..12.0).contains(&rate)), "{reduced:?}");
    assert_eq!(bus.metrics_in_memory().reduced_rates.get("hook").copied(), reduced);

    let minute = bus.time().now();
    bus.advance(Duration::from_secs(60)).await;
    let (all, accepted) = receiver.rates(minute, bus.time().now());
    assert!(all <= 12.0 && accepted >= 6.0, "{all} requests a second, {accepted} accepted");
    for second in 0..60 {
        let from = minute + Duration::from_secs(second);
        let (all, _) = receiver.rates(from, from + Duration::from_secs(1));
        assert!(all <= 12.0, "{all} requests in second {second}");
    }

    receiver.limit.store(usize::MAX, Ordering::SeqCst);
    bus.advance(Duration::from_secs(60)).await;
    assert_eq!(bus.subscriptions()[0].reduced_rate(), None, "nothing is reduced any more");
    bus.drain().await;
    let dead = bus.dead().await.len();
    assert!(dead < 60, "{dead} of 6000 are dead");
    publish(&bus, 2000).await;
    let full = bus.time().now();
    bus.drain().await;
    let (all, _) = receiver.rates(full, bus.time().now());
    assert!(all > 400.0, "{all} requests a second");
}

#[tokio::test]
async fn a_throttled_delivery_waits_longer_than_a_failed_one_and_opens_no_circuit() {
    let (bus, receiver) = bus_with(Limits { concurrency: 16, per_second: None }, 0).await;
    publish(&bus, 20).await;
    bus.advance(Duration::from_secs(3600)).await;
    bus.assert_dead("order.paid", 20).await;
    let metrics = bus.metrics_in_memory();
    assert_eq!(metrics.parked, 0, "a receiver that answers is not away");
    let event = &bus.dead().await[0];
    let attempts = bus.store().event(event.id).await.unwrap().attempts;
    let delays: Vec<u64> = attempts.iter().map(|attempt| attempt.delay_ms / 1000).collect();
    let nominal = [10, 20, 40, 80, 0];
    let is_slow = |(delay, nominal): (&u64, &u64)| (nominal * 9 / 10..=nominal * 11 / 10).contains(delay);
    assert!(delays.len() == 5 && delays.iter().zip(&nominal).all(is_slow), "{delays:?}");
    assert_eq!(receiver.requests.lock().unwrap().len(), 100);
}

#[tokio::test]
async fn a_reduced_rate_returns_to_the_configured_limit() {
    let (bus, receiver) = bus_with(Limits { concurrency: 16, per_second: Some(20.0) }, 5).await;
    publish(&bus, 900).await;
    bus.advance(Duration::from_secs(30)).await;
    let reduced = bus.subscriptions()[0].reduced_rate().unwrap();
    assert!(reduced < 8.0, "{reduced}");
    receiver.limit.store(usize::MAX, Ordering::SeqCst);
    bus.drain().await;
    assert_eq!(bus.subscriptions()[0].reduced_rate(), None);
    publish(&bus, 400).await;
    let full = bus.time().now();
    bus.drain().await;
    let (all, _) = receiver.rates(full, bus.time().now());
    assert!((15.0..=22.0).contains(&all), "{all} requests a second");
}
