//! Reference model of the bus in plain maps.
//!
//! The model does not predict the order in which the real bus claims due work. [`watch`](super::watch) reports when an
//! attempt begins and ends, and the handlers report when they are called. The model checks that each is allowed at this
//! instant, and computes the outcome. The driver of both checks afterwards that nothing was left undone.

mod attempts;
mod event;
mod operations;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redrive::EventId;
use redrive::retry::{Timestamp, VirtualTime};
use tokio::sync::Notify;

use super::circuit::Circuit;
use super::scene::{Kind, Scene};
use attempts::Running;
pub(super) use attempts::Said;
pub(super) use event::{Attempt, DeadLetter, Delivery, Draft, PlainEvent, State};

/// Delay of a delivery whose subscription is not registered: the age of the life, within these.
const MIN_ORPHAN_MS: i64 = 1000;
const MAX_ORPHAN_MS: i64 = 15_000;

/// Delay of an orphaned suspect.
const SUSPECT_ORPHAN_MS: i64 = 300_000;

/// Limit of attempts at one instant: more are an endless loop.
const MAX_ATTEMPTS_PER_INSTANT: u32 = 5000;

/// Error of an attempt that ended with the process.
const CRASHED: &str = "process ended during the attempt";

#[derive(Debug)]
struct PlainSubscription {
    kind: &'static Kind,
    circuit: Circuit,
    is_there: bool,
}

/// Counters that the real bus must show for this life.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) published: u64,
    pub(super) duplicates: u64,
    pub(super) attempts: u64,
    pub(super) done: u64,
    pub(super) dead: u64,
    pub(super) unmatched: u64,
    pub(super) parked: u64,
    pub(super) orphaned: u64,
    pub(super) recovered: u64,
}

/// The bus in plain maps.
#[derive(Debug)]
pub(super) struct PlainBus {
    pub(super) time: VirtualTime,
    pub(super) scene: Scene,
    pub(super) events: BTreeMap<EventId, PlainEvent>,
    pub(super) counts: Counts,
    pub(super) violations: Vec<String>,
    /// Notified of an endless loop at one instant.
    pub(super) endless_loop: Arc<Notify>,
    /// Events that changed since the last comparison.
    pub(super) touched: BTreeSet<EventId>,
    /// Handlers that succeeded more than once for an event.
    pub(super) repetitions: u64,
    /// All subscriptions of this life; indexes are stable, because running attempts use them.
    subscriptions: Vec<PlainSubscription>,
    /// In order of subscribing.
    order: Vec<usize>,
    /// Registered in any life, and not unsubscribed.
    on_record: Vec<&'static Kind>,
    /// Start of this life.
    started_at: i64,
    running: Vec<Running>,
    /// Batch whose ids are not known yet.
    drafts: Vec<Draft>,
    published: u64,
    /// Time after the last jump of the clock.
    jumped_at: i64,
    /// Start of the last attempt, and the number of attempts at that instant.
    last_began: (i64, u32),
    /// Past states of events since the last rest.
    seen: BTreeMap<EventId, Vec<PlainEvent>>,
}

impl PlainBus {
    pub(super) fn new(scene: Scene, time: VirtualTime) -> Self {
        PlainBus {
            time,
            scene,
            events: BTreeMap::new(),
            counts: Counts::default(),
            violations: Vec::new(),
            touched: BTreeSet::new(),
            endless_loop: Arc::default(),
            repetitions: 0,
            subscriptions: Vec::new(),
            order: Vec::new(),
            on_record: Vec::new(),
            started_at: 0,
            running: Vec::new(),
            drafts: Vec::new(),
            published: 0,
            jumped_at: 0,
            last_began: (0, 0),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn now(&self) -> i64 {
        self.time.now().as_millis()
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    fn blame(&mut self, sentence: String) {
        self.violations.push(sentence);
    }

    /// Forgets past states: at rest there is one possible past.
    pub(super) fn rest(&mut self) {
        self.seen.clear();
    }

    fn remember(&mut self, id: EventId) {
        if let Some(event) = self.events.get(&id) {
            self.seen.entry(id).or_default().push(event.clone());
            self.touched.insert(id);
        }
    }
}

/// An instant of the model as one of the real bus.
pub(super) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}
