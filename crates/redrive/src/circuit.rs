//! The circuit breaker of a subscription: one of this process, and optionally one that all processes on the same database share.

use std::sync::{Arc, Mutex};

use redrive_retry::breaker::{BreakerConfig, BreakerPermit, BreakerSnapshot, CircuitBreaker, Refused};
use redrive_retry::{Clock, Timestamp};
use redrive_store::{CircuitReport, CircuitState, CircuitView, Store, SubscriptionName};
use tokio::sync::Notify;

use crate::cluster_breaker::{Attempted, ClusterAdmission, ClusterBreaker, PROBE_RETRY_DELAY};
use crate::lock::lock;

/// Admits calls while closed, refuses them while open.
#[derive(Clone, Debug)]
pub(crate) struct Circuit {
    /// The breaker of this process.
    own: CircuitBreaker,
    /// The breaker shared among processes; `None` unless the subscription asked for one.
    shared: Option<Arc<ClusterCircuit>>,
}

/// A breaker that all processes on the same database share, as this process knows it.
#[derive(Debug)]
struct ClusterCircuit {
    name: SubscriptionName,
    clock: Clock,
    // A std mutex: locked for a few instructions, never across an await.
    state: Mutex<ClusterBreaker>,
    /// Notified when there are new counts to report.
    sync_wakeup: Arc<Notify>,
}

impl ClusterCircuit {
    /// Asks the store for a state change; returns whether this process made it.
    async fn change(&self, store: &dyn Store, change: CircuitState) -> bool {
        let made = match store.change_circuit(self.name.clone(), change).await {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(target: "redrive::circuit", subscription = %self.name, %error, "could not change the shared breaker");
                None
            }
        };
        self.sync_wakeup.notify_one(); // whichever process was first, the state has changed
        lock(&self.state).changed(change, made)
    }
}

impl Circuit {
    /// A breaker of this process alone.
    pub(crate) fn new(config: BreakerConfig, clock: Clock) -> Self {
        Circuit { own: CircuitBreaker::new(config, clock), shared: None }
    }

    /// A breaker of this process and one shared with other processes.
    pub(crate) fn shared(
        config: BreakerConfig,
        clock: Clock,
        name: SubscriptionName,
        sync_wakeup: Arc<Notify>,
    ) -> Self {
        let state = Mutex::new(ClusterBreaker::new(config));
        let shared = ClusterCircuit { name, clock: clock.clone(), state, sync_wakeup };
        Circuit { shared: Some(Arc::new(shared)), ..Circuit::new(config, clock) }
    }

    /// Admits one call. Asks the store only if the call could be the probe of a shared breaker.
    pub(crate) async fn acquire(&self, store: &dyn Store) -> Result<CircuitPermit<'_>, Refused> {
        let own = self.own.acquire()?;
        let permit = |generation, is_probe| CircuitPermit { circuit: self, own, generation, is_probe };
        let Some(shared) = &self.shared else { return Ok(permit(0, false)) };
        let (admission, generation) = {
            let mut state = lock(&shared.state);
            (state.admit(shared.clock.now()), state.known.generation)
        };
        match admission {
            ClusterAdmission::Go => Ok(permit(generation, false)),
            ClusterAdmission::Refused(until) => Err(Refused { until }),
            ClusterAdmission::Probe(change) if shared.change(store, change).await => {
                let generation = lock(&shared.state).known.generation;
                Ok(permit(generation, true))
            }
            ClusterAdmission::Probe(_) => Err(Refused { until: shared.clock.now() + PROBE_RETRY_DELAY }),
        }
    }

    /// The state as a decision sees it.
    pub(crate) fn snapshot(&self) -> BreakerSnapshot {
        let Some(shared) = &self.shared else { return self.own.snapshot() };
        let (state, now) = (lock(&shared.state).known, shared.clock.now());
        match state.until {
            None => self.own.snapshot(),
            Some(until) if now < until => BreakerSnapshot::Open { until },
            Some(_) => {
                let until = state
                    .probe_until
                    .filter(|end| now < *end)
                    .map_or(now, |end| end.min(now + PROBE_RETRY_DELAY));
                BreakerSnapshot::HalfOpen { until }
            }
        }
    }

    /// Notes that an event whose attempt succeeded at `counted_at`, in steady time, comes again, so that its next outcome replaces that one.
    pub(crate) fn expect_again(&self, event: u128, counted_at: Timestamp) {
        self.own.expect_again(event, counted_at);
        if let Some(shared) = &self.shared {
            let now = shared.clock.now();
            let ago = shared.clock.steady().since(counted_at);
            let counted_at = now.shifted(-i64::try_from(ago.as_millis()).unwrap_or(i64::MAX));
            lock(&shared.state).expect_again(event, counted_at, now);
        }
    }

    /// Whether other processes share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The counts to report to the other processes, if there are new ones.
    pub(crate) fn report(&self) -> Option<CircuitReport> {
        let shared = self.shared.as_ref()?;
        let mut state = lock(&shared.state);
        let counts = state.report(shared.clock.now())?;
        let (generation, window) = (state.known.generation, state.config.window());
        Some(CircuitReport { subscription: shared.name.clone(), generation, counts, window })
    }

    /// Keeps the counts of the last report for the next one, because the store refused it.
    pub(crate) fn report_failed(&self) {
        if let Some(shared) = &self.shared {
            lock(&shared.state).report_failed();
        }
    }

    /// Applies the answer to a report, and opens the breaker for all processes if the counts of all say so.
    pub(crate) async fn apply(&self, store: &dyn Store, reported_in: i64, view: &CircuitView) {
        let Some(shared) = &self.shared else { return };
        let (is_new, change) =
            lock(&shared.state).apply(reported_in, view.state, &view.others, shared.clock.now());
        if is_new {
            self.reset_own(shared, view.state.until.is_some());
        }
        if let Some(change) = change
            && shared.change(store, change).await
        {
            self.reset_own(shared, true);
        }
    }

    /// Resets this process's own breaker: the shared state overrides it.
    fn reset_own(&self, shared: &ClusterCircuit, is_open: bool) {
        self.own.reset();
        let state = if is_open { "open" } else { "closed" };
        tracing::info!(target: "redrive::circuit", subscription = %shared.name, state, "the shared breaker changed");
    }
}

/// Permission to make one call. Report how it ended; dropped without a report it counts nothing, and the probe of a shared breaker
/// loses its slot when its lease ends.
#[derive(Debug)]
#[must_use = "dropping the permit means that the call was not made"]
pub(crate) struct CircuitPermit<'a> {
    circuit: &'a Circuit,
    own: BreakerPermit,
    /// The generation of the shared breaker, if there is one.
    generation: i64,
    is_probe: bool,
}

impl CircuitPermit<'_> {
    /// Reports the outcome to both breakers.
    pub(crate) async fn ended(self, attempted: Attempted, succeeded: bool, store: &dyn Store) {
        let CircuitPermit { circuit, own, generation, is_probe } = self;
        own.record_event(attempted.event, succeeded);
        let Some(shared) = &circuit.shared else { return };
        let now = shared.clock.now();
        if !is_probe {
            lock(&shared.state).record(generation, attempted, succeeded, now);
            shared.sync_wakeup.notify_one();
            return;
        }
        let change = lock(&shared.state).probe_ended(generation, succeeded, now);
        if let Some(change) = change
            && shared.change(store, change).await
        {
            circuit.reset_own(shared, change.until.is_some());
        }
    }
}
