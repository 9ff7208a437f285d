//! The circuit of a subscription: that of this process, and beside it, where it is wanted, one in common with all processes that
//! share the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_retry::{
    BreakerConfig, BreakerPermit, BreakerSnapshot, CircuitState, Clock, PooledAdmission, PooledBreaker,
    Refused, SharedBreaker,
};
use redrive_store::{CircuitReport, CircuitView, Store, SubscriptionName};
use tokio::sync::Notify;

/// When to ask again who was not given the probe's slot, or could not be told.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Lets calls through, or not.
#[derive(Clone, Debug)]
pub(crate) struct Circuit {
    own: SharedBreaker,
    /// Nothing where it is not wanted.
    common: Option<Arc<Common>>,
}

#[derive(Debug)]
struct Common {
    name: SubscriptionName,
    clock: Clock,
    // A std mutex: held for a few instructions, never across an await.
    state: Mutex<PooledBreaker>,
    /// Who tells the others.
    news: Arc<Notify>,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, PooledBreaker> {
        // Every method leaves the state valid, so a poisoned lock is still good to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a change, and says whether it was made by us.
    async fn change(&self, store: &dyn Store, change: CircuitState) -> bool {
        let made = match store.change_circuit(self.name.clone(), change).await {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(target: "redrive::circuit", subscription = %self.name, %error, "could not change the common circuit");
                None
            }
        };
        self.news.notify_one(); // whoever was first, the state is another one now
        self.lock().asked(change, made)
    }
}

impl Circuit {
    /// A circuit of this process alone.
    pub(crate) fn new(config: BreakerConfig, clock: Clock) -> Self {
        Circuit { own: SharedBreaker::new(config, clock), common: None }
    }

    /// The same, and beside it one in common with others.
    pub(crate) fn in_common(
        config: BreakerConfig,
        clock: Clock,
        name: SubscriptionName,
        news: Arc<Notify>,
    ) -> Self {
        let state = Mutex::new(PooledBreaker::new(config));
        let common = Common { name, clock: clock.clone(), state, news };
        Circuit { common: Some(Arc::new(common)), ..Circuit::new(config, clock) }
    }

    /// The leave to make one call now. Asks nobody else, unless this call could be the probe of a common circuit.
    pub(crate) async fn acquire(&self, store: &dyn Store) -> Result<Permit<'_>, Refused> {
        let own = self.own.acquire()?;
        let Some(common) = &self.common else {
            return Ok(Permit { circuit: self, own, generation: 0, is_probe: false });
        };
        let (admission, generation) = {
            let mut state = common.lock();
            (state.admit(common.clock.now()), state.generation())
        };
        match admission {
            PooledAdmission::Go => Ok(Permit { circuit: self, own, generation, is_probe: false }),
            PooledAdmission::Refused(until) => Err(Refused { until }),
            PooledAdmission::Probe(change) if common.change(store, change).await => {
                let generation = common.lock().generation();
                Ok(Permit { circuit: self, own, generation, is_probe: true })
            }
            PooledAdmission::Probe(_) => Err(Refused { until: common.clock.now() + LOOK_AGAIN }),
        }
    }

    /// The state as a decision sees it.
    pub(crate) fn snapshot(&self) -> BreakerSnapshot {
        let Some(common) = &self.common else { return self.own.snapshot() };
        let (state, now) = (common.lock().state(), common.clock.now());
        match state.until {
            None => self.own.snapshot(),
            Some(until) if now < until => BreakerSnapshot::Open { until },
            Some(_) => {
                let until =
                    state.probe_until.filter(|end| now < *end).map_or(now, |end| end.min(now + LOOK_AGAIN));
                BreakerSnapshot::HalfOpen { until }
            }
        }
    }

    pub(crate) fn is_common(&self) -> bool {
        self.common.is_some()
    }

    /// What to tell the others, if anything.
    pub(crate) fn report(&self) -> Option<CircuitReport> {
        let common = self.common.as_ref()?;
        let mut state = common.lock();
        let counts = state.report(common.clock.now())?;
        let (generation, window) = (state.generation(), state.window());
        Some(CircuitReport { subscription: common.name.clone(), generation, counts, window })
    }

    /// Nobody has heard what was told last.
    pub(crate) fn unheard(&self) {
        if let Some(common) = &self.common {
            common.lock().unheard();
        }
    }

    /// Takes in the answer to a report, and opens the circuit for all if that is what all counts together say.
    pub(crate) async fn learn(&self, store: &dyn Store, asked_under: i64, view: &CircuitView) {
        let Some(common) = &self.common else { return };
        let (is_new, change) = common.lock().learn(asked_under, view.state, &view.others, common.clock.now());
        if is_new {
            self.begin(common, view.state.until.is_some());
        }
        if let Some(change) = change
            && common.change(store, change).await
        {
            self.begin(common, true);
        }
    }

    /// What all agree on goes before what this process has found out for itself.
    fn begin(&self, common: &Common, is_open: bool) {
        self.own.reset();
        let state = if is_open { "open" } else { "closed" };
        tracing::info!(target: "redrive::circuit", subscription = %common.name, state, "the common circuit has changed");
    }
}

/// The leave to make one call. Say how it ended; dropped without a word it counts nothing, and a probe of a common circuit loses
/// its slot when its lease ends.
#[derive(Debug)]
#[must_use = "dropping the permit at once means that the call was not made"]
pub(crate) struct Permit<'a> {
    circuit: &'a Circuit,
    own: BreakerPermit,
    /// Of the common circuit, if there is one.
    generation: i64,
    is_probe: bool,
}

impl Permit<'_> {
    pub(crate) async fn ended(self, succeeded: bool, store: &dyn Store) {
        let Permit { circuit, own, generation, is_probe } = self;
        if succeeded {
            own.success();
        } else {
            own.failure();
        }
        let Some(common) = &circuit.common else { return };
        let now = common.clock.now();
        if !is_probe {
            common.lock().record(generation, succeeded, now);
            common.news.notify_one();
            return;
        }
        let change = common.lock().probe_ended(generation, succeeded, now);
        if let Some(change) = change
            && common.change(store, change).await
        {
            circuit.begin(common, change.until.is_some());
        }
    }
}
