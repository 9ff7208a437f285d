//! The shop of the demo: five subscriptions and their simulated failures.
//!
//! Every failure is a function of seed, order and attempt, so one seed always gives the same failures.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{BoxError, Failure, Jitter, RetryPolicy};
use redrive::{BusError, Event, EventBus, EventBusBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::demo_error;
use crate::failure::Failure as Ended;

/// Number of the order with an unreadable payload.
const POISON_ORDER: u64 = 17;
/// One of this many billing calls fails.
const BILLING_FAILURE_RATIO: u64 = 5;
/// One of this many customers has no mailbox.
const MAIL_BOUNCE_RATIO: u64 = 1500;
/// One of this many mails hangs until its timeout.
const MAIL_HANG_RATIO: u64 = 500;
const MAIL_DURATION: Duration = Duration::from_millis(20);
const MAIL_TIMEOUT: Duration = Duration::from_millis(200);
/// Window of the circuit breakers; short, because the demo makes thousands of calls per second.
const BREAKER_WINDOW: Duration = Duration::from_millis(100);

/// Payload of `order.created`.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    order: u64,
    customer: String,
    cents: u64,
}

/// Time in which analytics is down.
#[derive(Copy, Clone, Debug)]
pub(super) struct Outage {
    pub(super) from: Instant,
    pub(super) until: Instant,
}

/// Counters of one subscription.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tally {
    pub(super) name: &'static str,
    pub(super) pattern: &'static str,
    pub(super) calls: u64,
    pub(super) failures: u64,
    /// The subscription's simulated behaviour.
    pub(super) habit: String,
}

/// A subscription of the shop. A std mutex, locked for one update only.
#[derive(Debug)]
struct Subscriber(Mutex<Tally>);

impl Subscriber {
    fn new(name: &'static str, pattern: &'static str, habit: impl Into<String>) -> Self {
        Subscriber(Mutex::new(Tally { name, pattern, calls: 0, failures: 0, habit: habit.into() }))
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        let mut tally = self.tally();
        tally.calls += 1;
        tally.failures += u64::from(result.is_err());
        result
    }
}

/// Subscriptions of the shop and their counters.
#[derive(Debug)]
pub(super) struct Shop {
    seed: u64,
    outage: Option<Outage>,
    shipping: Subscriber,
    billing: Subscriber,
    mail: Subscriber,
    crm: Subscriber,
    analytics: Subscriber,
}

impl Shop {
    pub(super) fn new(seed: u64, outage: Option<Outage>) -> Arc<Self> {
        let analytics = outage.map_or("healthy".to_owned(), |Outage { from, until }| {
            format!("down for {:.1}s: its circuit opens", until.duration_since(from).as_secs_f64())
        });
        Arc::new(Shop {
            seed,
            outage,
            shipping: Subscriber::new("shipping", "order.created", "healthy; one order is poison"),
            billing: Subscriber::new("billing", "order.created", "flaky: one call in five fails"),
            mail: Subscriber::new("e-mail", "order.*", "slow; some mail hangs, some bounces"),
            crm: Subscriber::new("crm", "user.*", "healthy"),
            analytics: Subscriber::new("analytics", "*", analytics),
        })
    }

    pub(super) fn tallies(&self) -> Vec<Tally> {
        let all = [&self.shipping, &self.billing, &self.mail, &self.crm, &self.analytics];
        all.map(|subscriber| subscriber.tally().clone()).into()
    }

    /// Opens the bus with all subscriptions; it is not started.
    pub(super) async fn open(
        self: &Arc<Self>,
        builder: EventBusBuilder,
        path: &std::path::Path,
        open_for: Duration,
    ) -> Result<EventBus, Ended> {
        let bus = builder.seed(self.seed).retention(None).open(path).await?;
        self.subscribe(&bus, open_for).map_err(demo_error)?;
        Ok(bus)
    }

    fn subscribe(self: &Arc<Self>, bus: &EventBus, open_for: Duration) -> Result<(), BoxError> {
        let breaker =
            BreakerConfig::builder().min_samples(20).window(BREAKER_WINDOW).open_for(open_for).build()?;
        self.add(bus, &self.shipping, &breaker, |shop, event| async move { shop.ship(&event) })?;
        self.add(bus, &self.billing, &breaker, |shop, event| async move { shop.bill(&event) })?;
        self.add(bus, &self.mail, &breaker, |shop, event| async move { shop.mail(&event).await })?;
        self.add(bus, &self.crm, &breaker, |shop, event| async move { shop.welcome(&event) })?;
        self.add(bus, &self.analytics, &breaker, |shop, event| async move { shop.count(&event) })?;
        Ok(())
    }

    fn add<Fut: Future<Output = Result<(), Failure>> + Send + 'static>(
        self: &Arc<Self>,
        bus: &EventBus,
        subscriber: &Subscriber,
        breaker: &BreakerConfig,
        handle: impl Fn(Arc<Self>, Event) -> Fut + Send + Sync + 'static,
    ) -> Result<(), BusError> {
        let shop = Arc::clone(self);
        let tally = subscriber.tally();
        bus.subscribe(tally.pattern, move |event: Event| handle(Arc::clone(&shop), event))
            .name(tally.name)
            .timeout(MAIL_TIMEOUT)
            .breaker(*breaker)
            .register()
            .map(|_| ())
    }

    fn ship(&self, event: &Event) -> Result<(), Failure> {
        self.shipping.record(event.json::<Order>().map(|_| ()))
    }

    fn bill(&self, event: &Event) -> Result<(), Failure> {
        let order: Order = event.json()?;
        let fails =
            self.chance("billing", order.order, event.attempt()).is_multiple_of(BILLING_FAILURE_RATIO);
        let answer = if fails {
            Err(Failure::new("the payment provider answers 503 Service Unavailable"))
        } else {
            Ok(())
        };
        self.billing.record(answer)
    }

    async fn mail(&self, event: &Event) -> Result<(), Failure> {
        let number = number(event)?;
        if self.chance("hang", number, event.attempt()).is_multiple_of(MAIL_HANG_RATIO) {
            // Counted now: after its timeout the handler is dropped.
            let _ = self.mail.record(Err(Failure::timeout(MAIL_TIMEOUT)));
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(MAIL_DURATION).await;
        let bounces = self.chance("bounce", number, 0).is_multiple_of(MAIL_BOUNCE_RATIO);
        let answer = if bounces {
            Err(Failure::new(format!("550 mailbox customer{number}@example.com does not exist")))
        } else {
            Ok(())
        };
        self.mail.record(answer)
    }

    fn welcome(&self, event: &Event) -> Result<(), Failure> {
        self.crm.record(number(event).map(|_| ()))
    }

    fn count(&self, _event: &Event) -> Result<(), Failure> {
        let now = Instant::now();
        let down = self.outage.is_some_and(|outage| outage.from <= now && now < outage.until);
        let answer = if down { Err(Failure::new("analytics is down: connection refused")) } else { Ok(()) };
        self.analytics.record(answer)
    }

    /// Type and payload of an event.
    pub(super) fn event(&self, number: u64) -> (&'static str, Value) {
        if number == POISON_ORDER {
            return ("order.created", json!({"order": "seventeen", "customer": 17}));
        }
        let luck = self.chance("happening", number, 0);
        let customer = format!("customer{number}@example.com");
        let cents = 500 + luck % 20_000;
        match luck % 10 {
            0..=5 => ("order.created", json!(Order { order: number, customer, cents })),
            6 | 7 => ("order.shipped", json!({"order": number, "parcel": format!("P{luck:016x}")})),
            8 => ("user.registered", json!({"order": number, "customer": customer})),
            _ => ("cart.abandoned", json!({"order": number, "cents": cents})),
        }
    }

    fn chance(&self, what: &str, number: u64, attempt: u32) -> u64 {
        // FNV-1a over the words, then the finaliser of splitmix64: fast and portable.
        let words = [self.seed, number, u64::from(attempt)].into_iter().flat_map(u64::to_le_bytes);
        let hash = what.bytes().chain(words).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Number of an event; the poison event has none.
fn number(event: &Event) -> Result<u64, Failure> {
    #[derive(Deserialize)]
    struct Numbered {
        order: u64,
    }
    event.json::<Numbered>().map(|numbered| numbered.order)
}

/// Retry policy with short delays.
pub(super) fn policy(max_attempts: u32, max_delay: Duration) -> Result<RetryPolicy, Ended> {
    RetryPolicy::builder()
        .max_attempts(max_attempts)
        .base_delay(Duration::from_millis(50))
        .max_delay(max_delay)
        .jitter(Jitter::Equal)
        .build()
        .map_err(demo_error)
}
