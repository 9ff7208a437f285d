//! State that the bus, its handles and the dispatcher share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use redrive_retry::{Clock, Timestamp, VirtualTime};
use redrive_store::{
    ClaimSink, Claimed, EventType, NewEvent, RemoteSubscription, Store, StoreError, SubscriptionName,
    SubscriptionRow,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use crate::builder::{EventBusBuilder, Unmatched};
use crate::lock::lock;
use crate::metrics::Counters;
use crate::pattern::Patterns;
use crate::subscriptions::Subscriptions;
use crate::waiters::Waiters;

/// Number of subscriptions that are recorded at the same time.
const RECORD_BATCH: usize = 256;

/// Maximum number of calls that grant or end leases at the same time.
pub(crate) const LEASE_WORK: u32 = 1 << 16;

/// Whether other deliveries may run beside this one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Beside others.
    Concurrent,
    /// Alone: a crash suspect, which may be what kills the process.
    Exclusive,
}

/// Lifecycle of the bus.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Started,
    ShuttingDown,
}

/// Whether the store claims deliveries for this bus: while it dispatches and is not paused.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct DispatchSwitch {
    pub(crate) dispatches: bool,
    /// Whether the whole bus is paused; a subscription has its own pause in its admission.
    pub(crate) is_paused: bool,
}

impl DispatchSwitch {
    pub(crate) fn is_on(self) -> bool {
        self.dispatches && !self.is_paused
    }
}

/// The shared state of one bus: settings, registry, store, and the signals between the tasks of the dispatcher.
pub(crate) struct Core {
    pub(crate) settings: EventBusBuilder,
    pub(crate) store: Arc<dyn Store>,
    /// The clock of the settings, or the store's.
    pub(crate) clock: Clock,
    /// Subscriptions that were on record when the bus was opened, and that this process has not registered or removed since.
    pub(crate) unregistered: Mutex<HashMap<SubscriptionName, SubscriptionRow>>,
    /// The store sends claimed deliveries here, and `dispatcher::run_claimed` receives them. Each occupies a slot until it is settled.
    pub(crate) sink: ClaimSink,
    /// The other end of the sink, until `start` takes it.
    pub(crate) claims: Mutex<Option<UnboundedReceiver<Claimed>>>,
    /// Locked while the bus starts.
    pub(crate) starting: tokio::sync::Mutex<()>,
    /// When the bus was started.
    pub(crate) started_at: OnceLock<Timestamp>,
    /// The runtime in which the bus was started.
    pub(crate) runtime: OnceLock<tokio::runtime::Handle>,
    /// Copied on write, so that a dispatch holds no lock.
    pub(crate) subscriptions: RwLock<Arc<Subscriptions>>,
    pub(crate) waiters: Waiters,
    /// Bounds the pull leases that are being settled.
    pub(crate) lease_slots: ClaimSink,
    /// One of [`LEASE_WORK`] permits is held while a lease is granted or ended. A shutdown takes all of them and closes the semaphore.
    pub(crate) lease_work: Arc<Semaphore>,
    pub(crate) counters: Counters,
    pub(crate) phase: watch::Sender<Phase>,
    /// Changed by [`Core::switch`] only.
    pub(crate) switch: watch::Sender<DispatchSwitch>,
    /// Notified when a shared breaker or budget has something to report to the other processes.
    pub(crate) sync_wakeup: Arc<Notify>,
    /// Notified when a limiter may have capacity for its backlog.
    pub(crate) backlog_wakeup: Arc<Notify>,
    /// Locked while subscriptions are recorded: the last write is the current state.
    pub(crate) recording: tokio::sync::Mutex<()>,
    /// Counts pauses of single subscriptions and moves to the backlog, for publishers that wait: their event may have nothing else left.
    pub(crate) deferrals: watch::Sender<u64>,
    /// The virtual time of a [`TestBus`](crate::testing::TestBus), which a waiting publish moves on.
    pub(crate) virtual_time: OnceLock<VirtualTime>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Core {
    /// Changes the switch, and attaches the sink to the store or detaches it. Under one lock, so that of two concurrent changes the later
    /// one decides.
    pub(crate) fn switch(&self, change: impl FnOnce(&mut DispatchSwitch)) {
        self.switch.send_modify(|switch| {
            change(switch);
            self.store.attach(switch.is_on().then(|| self.sink.clone()));
        });
    }

    /// Whether the store claims for this bus, due events in the transaction that stores them.
    pub(crate) fn is_dispatching(&self) -> bool {
        self.switch.borrow().is_on()
    }

    /// Returns the number of deliveries that are claimed and not settled.
    pub(crate) fn in_flight(&self) -> usize {
        self.settings.in_flight - self.sink.free_slots()
    }

    pub(crate) fn subscriptions(&self) -> Arc<Subscriptions> {
        Arc::clone(&self.subscriptions.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Matching subscriptions that other processes have registered and this one has not.
    pub(crate) async fn remote_subscriptions(
        &self,
        event_type: &EventType,
    ) -> Result<Vec<SubscriptionName>, StoreError> {
        if !self.store.is_shared() {
            return Ok(Vec::new());
        }
        let remote = self.store.remote_subscriptions().await?;
        let is_match =
            |one: &&RemoteSubscription| Patterns::text_matches(&one.event_type, event_type.as_str());
        Ok(remote.iter().filter(is_match).map(|subscription| subscription.name.clone()).collect())
    }

    /// Subscriptions on record that this process has not registered.
    pub(crate) async fn unregistered_subscriptions(&self) -> Result<Vec<RemoteSubscription>, StoreError> {
        let on_record = self.store.recorded_subscriptions().await?;
        let here = self.subscriptions();
        Ok(on_record.iter().filter(|one| here.named(one.name.as_str()).is_none()).cloned().collect())
    }

    /// The ids of the subscriptions on record that a delivery is for, and that this process has not registered: the named one, or all
    /// that match the event type.
    pub(crate) fn unregistered_ids(
        &self,
        name: Option<&SubscriptionName>,
        event_type: &EventType,
    ) -> Vec<String> {
        let unregistered = lock(&self.unregistered);
        let is_meant = |row: &&SubscriptionRow| match name {
            Some(name) => row.name == *name,
            None => Patterns::text_matches(&row.event_type, event_type.as_str()),
        };
        unregistered.values().filter(is_meant).map(|row| row.id.clone()).collect()
    }

    /// Whether an event without a matching subscription here would be done at once, so that it can be stored as done.
    pub(crate) fn done_if_unmatched(&self, event: &NewEvent) -> bool {
        self.settings.unmatched == Unmatched::Done
            && event.due_at <= event.created_at
            && !self.store.is_shared()
            && self.is_dispatching()
            && self.unregistered_ids(None, &event.event_type).is_empty()
    }

    /// Records that a delivery of this subscription went to the backlog on disk.
    pub(crate) fn deferred_to_backlog(&self, name: &SubscriptionName) {
        if let Some(subscription) = self.subscriptions().named(name.as_str()) {
            subscription.admission.backlog.deferred();
        }
    }

    /// Stores the current state of a subscription: its patterns, or that it is gone.
    pub(crate) async fn record(&self, name: &SubscriptionName) -> Result<(), StoreError> {
        let _one_at_a_time = self.recording.lock().await;
        let current = self.subscriptions().named(name.as_str()).cloned();
        match current {
            Some(subscription) => self.store.register(subscription.row()).await,
            None => self.store.unregister(name.clone(), self.clock.now()).await.map(drop),
        }
    }

    /// Stores the current state of a subscription, and waits until every other process on the same database knows it.
    pub(crate) async fn announce(&self, name: &SubscriptionName) -> Result<(), StoreError> {
        self.record(name).await?;
        self.store.subscriptions_propagated().await
    }

    /// Stores all subscriptions and returns them. Many at the same time, so that thousands of them share commits.
    pub(crate) async fn record_all(&self) -> Result<Arc<Subscriptions>, StoreError> {
        let _one_at_a_time = self.recording.lock().await;
        let all = self.subscriptions();
        for some in all.all().chunks(RECORD_BATCH) {
            let mut recording = JoinSet::new();
            for row in some.iter().map(|subscription| subscription.row()) {
                let store = Arc::clone(&self.store);
                recording.spawn(async move { store.register(row).await });
            }
            recording.join_all().await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(all)
    }

    /// Removes a subscription by its id, also one that is only on record; returns whether there was one.
    pub(crate) async fn unsubscribe(&self, id: &str) -> Result<bool, StoreError> {
        let removed = {
            let mut subscriptions = self.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
            Arc::make_mut(&mut subscriptions).remove(id).map(|removed| removed.name.clone())
        };
        let removed = removed.or_else(|| {
            let mut unregistered = lock(&self.unregistered);
            let name = unregistered.values().find(|row| row.id == id)?.name.clone();
            unregistered.remove(&name).map(|row| row.name)
        });
        let Some(name) = removed else { return Ok(false) };
        self.record(&name).await?;
        Ok(true)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }
}

/// Records a subscription that was registered while the bus runs, and logs a failure.
pub(crate) async fn record_or_log(core: Arc<Core>, name: SubscriptionName) {
    if let Err(error) = core.record(&name).await {
        tracing::error!(target: "redrive::bus", %name, %error, "the subscription works, but could not be recorded");
    }
}
