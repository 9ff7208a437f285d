//! Registration: turns a [`Subscribe`] builder into a subscription of the bus and records it in the store.

use std::sync::{Arc, PoisonError};

use redrive_store::{EventId, SubscriptionName};

use crate::admission::Admission;
use crate::backlog::Backlog;
use crate::budget::Budget;
use crate::circuit::Circuit;
use crate::core::{Core, Phase, record_or_log};
use crate::error::{BusError, EventBusShutdownError};
use crate::limiter::Limiter;
use crate::lock::lock;
use crate::middleware::surround;
use crate::pattern::Patterns;
use crate::pull::PullQueue;
use crate::subscribe::{Registration, Subscribe};
use crate::subscription::Subscription;
use crate::subscription_handle::SubscriptionHandle;

impl Subscribe<'_> {
    /// Checks the settings, adds the subscription to the registry and, on a started bus, records it in the store.
    pub(crate) fn register_as(self, registration: Registration) -> Result<SubscriptionHandle, BusError> {
        let core = &self.bus.core;
        if core.phase() == Phase::ShuttingDown {
            return Err(EventBusShutdownError.into());
        }
        let patterns = if self.drains_only { Patterns::none() } else { self.pattern.parse()? };
        if let Some(retry) = &self.retry {
            retry.apply_to(&core.settings.policy)?;
        }
        let budget = self.new_budget(core)?;
        let mut subscriptions = core.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
        let taken = |name: &str| subscriptions.named(name).is_some();
        let name = match &self.name {
            Some(name) if registration == Registration::New && taken(name) => {
                return Err(BusError::NameTaken { name: name.clone() });
            }
            Some(name) => name.clone(),
            // The number within one pattern is the same at every start.
            None => (1..).map(|n| format!("{patterns}#{n}")).find(|name| !taken(name)).unwrap_or_default(),
        };
        let name = SubscriptionName::new(name)?;
        let before = subscriptions.named(name.as_str()).cloned();
        let on_record = lock(&core.unregistered).remove(&name);
        let row = before.as_ref().map(|before| before.row()).or(on_record);
        let now = core.clock.now();
        let (id, created_at) =
            row.map_or_else(|| (EventId::random().to_string(), now), |row| (row.id, row.created_at));
        let admission = self.new_admission(core, &name, budget);
        if let Some(before) = &before {
            admission.inherit(&before.admission, self.resets_limits, now);
        }
        let subscription = Subscription {
            name: name.clone(),
            id: id.clone(),
            patterns,
            created_at,
            handler: surround(surround(self.handler, &self.middleware), &core.settings.middleware),
            timeout: self.timeout,
            retry: self.retry,
            admission,
            is_idempotent: self.is_idempotent,
            is_remote_effect: self.is_remote_effect,
            counters: before.as_ref().map(|before| Arc::clone(&before.counters)).unwrap_or_default(),
        };
        Arc::make_mut(&mut subscriptions).put(Arc::new(subscription));
        if let Some(queue) = &self.queue {
            queue.registered(core, &name);
        }
        drop(subscriptions);
        // Prefetched deliveries of the replaced subscription return to the backlog, and the new one claims them.
        if let Some(before) = before {
            before.admission.close();
        }
        core.sync_wakeup.notify_one();
        core.backlog_wakeup.notify_one();
        if let Some(runtime) = core.runtime.get().filter(|_| core.phase() == Phase::Started) {
            runtime.spawn(record_or_log(Arc::clone(core), name.clone()));
        }
        Ok(SubscriptionHandle { core: Arc::clone(core), id, name })
    }

    fn new_budget(&self, core: &Core) -> Result<Option<Budget>, BusError> {
        if self.budget.is_none() && !self.has_shared_budget {
            return Ok(None);
        }
        let config = self.budget.unwrap_or_default().for_waiting()?;
        let is_shared = self.has_shared_budget && core.store.is_shared();
        Ok(Some(if is_shared { Budget::shared(config, core.clock.now()) } else { Budget::new(config) }))
    }

    fn new_admission(&self, core: &Core, name: &SubscriptionName, budget: Option<Budget>) -> Admission {
        let clock = core.clock.clone();
        let circuit = if self.has_shared_breaker {
            Circuit::shared(self.breaker, clock, name.clone(), Arc::clone(&core.sync_wakeup))
        } else {
            Circuit::new(self.breaker, clock)
        };
        let backlog = Arc::new(Backlog::new(Arc::clone(&core.backlog_wakeup)));
        let limiter = self.limits.map(|limits| {
            let (now, demand) = (core.clock.now(), self.queue.as_ref().map(PullQueue::demand));
            Arc::new(Limiter::new(limits, now, Arc::clone(&backlog), demand))
        });
        Admission { limiter, budget, circuit, backlog }
    }
}
