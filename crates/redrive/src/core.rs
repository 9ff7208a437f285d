//! What bus and dispatcher share.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redrive_retry::audit::AuditSink;
use redrive_retry::{Clock, RetryPolicy};
use redrive_store::{ClaimSink, EventType, NewEvent, Store, StoreError, SubscriptionName};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::gate::Gate;
use crate::metrics::Counters;
use crate::pattern::Patterns;
use crate::roster::Roster;
use crate::waiters::Waiters;

/// So many subscriptions are written down at the same time.
const TOGETHER: usize = 256;

/// How failures are counted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// The event is the unit: its handlers run one after the other, and if one fails the whole event is tried again.
    #[default]
    Event,
    /// Each subscription is a unit of its own, with its own attempts, backoff and dead-letter entry.
    PerSubscription,
}

/// What becomes of an event that no subscription matches.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// It is done, and counted.
    #[default]
    Done,
    /// It goes to the dead-letter queue.
    DeadLetter,
}

/// Where the bus is in its life.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Started,
    ShuttingDown,
}

pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) policy: RetryPolicy,
    pub(crate) seed: u64,
    pub(crate) tracking: Tracking,
    pub(crate) unmatched: Unmatched,
    pub(crate) retention: Option<Duration>,
    pub(crate) sink: ClaimSink,
    pub(crate) in_flight: usize,
    /// Replaced as a whole when it changes while somebody reads it, so that a dispatch holds no lock.
    pub(crate) subscriptions: RwLock<Arc<Roster>>,
    pub(crate) waiters: Waiters,
    pub(crate) counters: Counters,
    pub(crate) audit: Arc<dyn AuditSink>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) is_paused: watch::Sender<bool>,
    pub(crate) gate: Gate,
    /// Woken when there is something to tell the processes that have circuits or budgets in common with this one.
    pub(crate) news: Arc<Notify>,
    /// Woken when a lane may have room for what is held for it.
    pub(crate) room: Arc<Notify>,
    /// Held by whoever writes down which subscriptions there are: what is written last is what holds.
    pub(crate) recording: tokio::sync::Mutex<()>,
}

impl Core {
    pub(crate) fn subscriptions(&self) -> Arc<Roster> {
        Arc::clone(&self.subscriptions.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who wants this type in other processes, and not in this one.
    pub(crate) async fn subscribed_elsewhere(
        &self,
        event_type: &EventType,
    ) -> Result<Vec<SubscriptionName>, StoreError> {
        if !self.store.is_shared() {
            return Ok(Vec::new());
        }
        let there = self.store.subscribed_elsewhere().await?;
        let wants = |patterns: &str| {
            patterns.parse::<Patterns>().is_ok_and(|patterns| patterns.matches(event_type.as_str()))
        };
        let wanting = there.iter().filter(|subscription| wants(&subscription.event_type));
        Ok(wanting.map(|subscription| subscription.name.clone()).collect())
    }

    /// Whether an event that nobody here wants would be handled at once, and be over: then that need not be done.
    pub(crate) fn would_be_over(&self, event: &NewEvent) -> bool {
        self.unmatched == Unmatched::Done
            && event.due_at <= event.created_at
            && !self.store.is_shared()
            && self.gate.is_open()
    }

    /// Something is held on disk for this subscription.
    pub(crate) fn is_held(&self, name: &SubscriptionName) {
        if let Some(subscription) = self.subscriptions().named(name.as_str()) {
            subscription.is_held(&self.room);
        }
    }

    /// Writes down how a subscription stands: what it wants, or that it is not there any more.
    pub(crate) async fn record(&self, name: &SubscriptionName) -> Result<(), StoreError> {
        let _one_after_the_other = self.recording.lock().await;
        let current = self.subscriptions().named(name.as_str()).cloned();
        match current {
            Some(subscription) => self.store.register(subscription.row()).await,
            None => self.store.unregister(name.clone()).await.map(drop),
        }
    }

    /// Writes all of them down, and says who they are. Many at the same time, so that they share their commits: there may be thousands.
    pub(crate) async fn record_all(&self) -> Result<Arc<Roster>, StoreError> {
        let _one_after_the_other = self.recording.lock().await;
        let all = self.subscriptions();
        for some in all.all().chunks(TOGETHER) {
            let mut recording = JoinSet::new();
            for row in some.iter().map(|subscription| subscription.row()) {
                let store = Arc::clone(&self.store);
                recording.spawn(async move { store.register(row).await });
            }
            recording.join_all().await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(all)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }
}
