//! Uses the bus like an application and journals every promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redrive::dlq::{DeadLetter, DlqFilter, DlqPage};
use redrive::events::{EventStatus, Metadata};
use redrive::retry::Clock;
use redrive::store::StoreError;
use redrive::subscription::SubscriptionName;
use redrive::{BusError, EventBus, EventId, EventType};

use crate::journal::{Fact, Journal, Refusal, Whom};
use crate::plan::{Batch, Payload, Plan};

/// A client of the bus.
#[derive(Debug)]
pub struct Publisher {
    bus: EventBus,
    journal: Arc<Journal>,
    /// Timeout of waiting for the end of an event.
    answer_timeout: Duration,
    /// Consecutive errors of a stopped store.
    stopped: u32,
}

/// An event to be published.
#[derive(Copy, Clone, Debug)]
pub struct Order {
    /// The event's id.
    pub id: EventId,
    /// The event's type.
    pub event_type: &'static str,
    /// Planned outcome.
    pub plan: Plan,
    /// A number for its payload.
    pub n: u64,
    /// Whether the number is repeated in the metadata.
    pub has_metadata: bool,
    /// Delay before it is due.
    pub delay: Option<Duration>,
    /// Bytes of padding.
    pub ballast: usize,
}

impl Order {
    /// An order without options.
    pub fn new(event_type: &'static str, plan: Plan, n: u64) -> Self {
        let id = EventId::new();
        Order { id, event_type, plan, n, has_metadata: false, delay: None, ballast: 0 }
    }

    fn payload(&self) -> Payload {
        Payload { ballast: "x".repeat(self.ballast), ..Payload::new(self.plan, self.n) }
    }

    fn metadata(&self) -> Metadata {
        self.has_metadata.then(|| ("n".to_owned(), self.n.to_string())).into_iter().collect()
    }
}

/// Batch keys are built of life and number.
static BATCHES: AtomicU64 = AtomicU64::new(0);

impl Publisher {
    /// A client of this bus.
    pub fn new(bus: EventBus, journal: Arc<Journal>, answer_timeout: Duration) -> Self {
        Publisher { bus, journal, answer_timeout, stopped: 0 }
    }

    /// Consecutive errors of a stopped store.
    pub fn stopped(&self) -> u32 {
        self.stopped
    }

    fn prepare(&self, order: &Order) -> redrive::publish::Publish {
        let mut publish = self.bus.publish(order.event_type, &order.payload()).id(order.id);
        for (key, value) in order.metadata() {
            publish = publish.metadata(key, value);
        }
        match order.delay {
            Some(delay) => publish.delay(delay),
            None => publish,
        }
    }

    /// Publishes; returns whether the event is on disk.
    pub async fn publish(&mut self, order: Order) -> bool {
        let since = now();
        let Ok(result) = tokio::time::timeout(self.answer_timeout, self.prepare(&order).enqueue()).await
        else {
            self.no_answer(Whom::Event(order.id), "no answer".to_owned());
            return false;
        };
        self.hear(&order, since, result.map(drop))
    }

    /// Publishes and waits for the end of the event.
    pub async fn publish_and_wait(&mut self, order: Order) -> bool {
        let since = now();
        let publish = self.prepare(&order).into_future();
        let Ok(result) = tokio::time::timeout(self.answer_timeout, publish).await else {
            self.no_answer(Whom::Event(order.id), "no answer".to_owned());
            return false;
        };
        // A stored and unfinished event is acknowledged.
        if let Err(BusError::NotFinished { .. }) = &result {
            let fact = ack(order.id, order.event_type, since, &order.payload(), &order.metadata());
            self.journal.note(&fact);
        }
        let is_finished = self.hear(&order, since, result.map(drop));
        if is_finished {
            self.journal.note(&Fact::Finished { id: order.id });
        }
        is_finished
    }

    /// Publishes a batch.
    pub async fn publish_batch(&mut self, events: &[(&'static str, Plan, u64)]) {
        let key = self.journal.life() << 32 | BATCHES.fetch_add(1, Ordering::Relaxed);
        let batch = Some(Batch { key, size: events.len() as u64 });
        let payload = |plan, n| Payload { batch, ..Payload::new(plan, n) };
        let events: Vec<_> = events.iter().map(|(name, plan, n)| (*name, payload(*plan, *n))).collect();
        let since = now();
        match self.bus.publish_batch(events.iter().map(|(name, payload)| (*name, payload))).await {
            Ok(ids) => {
                self.stopped = 0;
                let acks: Vec<Fact> = ids
                    .into_iter()
                    .zip(&events)
                    .map(|(id, (name, payload))| ack(id, name, since, payload, &Metadata::new()))
                    .collect();
                self.journal.note_all(&acks);
            }
            Err(error) => self.refuse(Whom::Batch(key), &error),
        }
    }

    /// Publishes an existing id with another payload: it is refused, and nothing changes.
    pub async fn publish_again(&mut self, id: EventId, event_type: &str) {
        let other = Payload::new(Plan::Never, u64::MAX);
        match self.bus.publish(event_type, &other).id(id).enqueue().await {
            Ok(_) | Err(BusError::Store(StoreError::IdTaken { .. })) => {}
            Err(error) => self.refuse(Whom::Other, &error),
        }
    }

    /// Dead events, newest first.
    pub async fn dead(&mut self, limit: u32) -> Vec<DeadLetter> {
        let page = DlqPage { limit, ..DlqPage::default() };
        match self.bus.dlq().list(DlqFilter::default(), page).await {
            Ok(dead) => dead,
            Err(error) => {
                self.refuse(Whom::Other, &error);
                Vec::new()
            }
        }
    }

    /// Redrives a dead event, edited or not.
    pub async fn redrive(&mut self, dead: &DeadLetter, mend: bool) {
        let id = dead.id;
        let mended = serde_json::from_str::<Payload>(dead.payload.get()).ok().filter(|_| mend);
        let mended = mended.map(|payload| Payload { plan: Plan::Succeed, ..payload });
        let edited = mended.as_ref().map(|payload| payload.plan);
        self.journal.note(&Fact::RedriveBegin { id, edited });
        let result = match mended {
            Some(payload) => self.bus.dlq().retry_edited(id, &payload).await,
            None => self.bus.dlq().retry(id).await,
        };
        match result {
            Ok(()) => self.journal.note(&Fact::Redriven { id, edited }),
            // Another publisher was faster.
            Err(BusError::Store(StoreError::NotDead { .. } | StoreError::NoSuchEvent { .. })) => {}
            Err(error) => self.refuse(Whom::Other, &error),
        }
    }

    /// Purges dead events up to and including one that no subscription is owed. `last` comes from [`dead`](Self::dead),
    /// called with this limit.
    pub async fn purge(&mut self, last: &DeadLetter, dead: &[DeadLetter], limit: u32) {
        let (id, until) = (last.id, last.created_at);
        let Ok(event) = self.bus.store().event(id).await else { return };
        let is_over = |status| matches!(status, EventStatus::Done | EventStatus::Dlq);
        let is_owed = event.deliveries.iter().any(|delivery| !is_over(delivery.status));
        if event.status != EventStatus::Dlq || is_owed {
            return;
        }
        let old_enough = dead.iter().filter(|dead| dead.created_at <= until).count() as u64;
        // Newest first: if there are more, they are older.
        let candidates = if dead.len() < limit as usize { old_enough } else { u64::MAX };
        self.journal.note(&Fact::PurgeBegin { until: until.as_millis(), last: id, candidates });
        match self.bus.dlq().purge_until(until).await {
            Ok(count) => self.journal.note(&Fact::Purged { until: until.as_millis(), count }),
            Err(error) => self.refuse(Whom::Other, &error),
        }
    }

    /// Waits until nothing is left to do, up to the timeout. A stopped store ends the wait.
    pub async fn rest(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        // Removes an unknown subscription: no change, but only a working store says so.
        let unknown = SubscriptionName::new("unknown").expect("a valid name");
        for look in 1_u32.. {
            let asked = match self.bus.store().depth().await {
                Ok(depth) if depth.is_idle() => {
                    return;
                }
                Ok(_) if look % 50 == 0 => {
                    let store = self.bus.store();
                    store.unregister(unknown.clone(), store.clock().now()).await.map(drop)
                }
                other => other.map(drop),
            };
            if let Err(error) = asked {
                self.refuse(Whom::Other, &error.into());
            }
            if self.stopped > 0 {
                return;
            }
            if Instant::now() > until {
                let left = self.bus.store().depth().await;
                return self.no_answer(Whom::Other, format!("work is left: {left:?}"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Journals the answer to a publish.
    fn hear(&mut self, order: &Order, since: i64, result: Result<(), BusError>) -> bool {
        match result {
            Ok(()) => {
                self.stopped = 0;
                let fact = ack(order.id, order.event_type, since, &order.payload(), &order.metadata());
                self.journal.note(&fact);
                true
            }
            Err(error) => {
                self.refuse(Whom::Event(order.id), &error);
                false
            }
        }
    }

    /// Journals a missing answer.
    fn no_answer(&self, whom: Whom, why: String) {
        let why = format!("{why} within {} s", self.answer_timeout.as_secs());
        self.journal.note(&Fact::Refused { whom, refusal: Refusal::NoAnswer, why });
    }

    fn refuse(&mut self, whom: Whom, error: &BusError) {
        let is_stopped = matches!(error, BusError::Store(StoreError::Stopped { .. }));
        self.stopped = if is_stopped { self.stopped + 1 } else { 0 };
        refused(&self.journal, whom, error);
    }
}

/// Journals a refusal.
pub fn refused(journal: &Journal, whom: Whom, error: &BusError) {
    let refusal = match error {
        BusError::Store(StoreError::DiskFull) => Refusal::DiskFull,
        BusError::Store(StoreError::Busy) => Refusal::Busy,
        BusError::Store(StoreError::Unknown { .. }) => Refusal::Unknown,
        BusError::Store(StoreError::Stopped { .. }) => Refusal::Stopped,
        _ => Refusal::Other,
    };
    journal.note(&Fact::Refused { whom, refusal, why: error.to_string() });
}

fn ack(id: EventId, event_type: &str, since: i64, payload: &Payload, metadata: &Metadata) -> Fact {
    let event_type = EventType::new(event_type).expect("the types of the harness are types");
    Fact::Ack { id, plan: payload.plan, event_type, since, content: payload.content(metadata) }
}

fn now() -> i64 {
    Clock::system().now().as_millis()
}
