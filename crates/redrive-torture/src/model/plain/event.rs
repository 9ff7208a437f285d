//! Events and deliveries of the model.

use std::collections::BTreeMap;

use redrive::events::EventStatus;

use super::super::operation::Plan;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::model) enum State {
    /// Was running at two crashes: runs in isolation, before all others.
    Suspect,
    Pending,
    Running,
    Waiting,
    Done,
    Dead,
    /// The event's deliveries are open.
    Delivering,
    /// The event's deliveries were redriven, and none was claimed since.
    Redriven,
}

impl State {
    pub(in crate::model) fn is_open(self) -> bool {
        matches!(self, State::Suspect | State::Pending | State::Running | State::Waiting)
    }

    pub(in crate::model) fn shown(self) -> EventStatus {
        match self {
            State::Suspect | State::Pending | State::Redriven => EventStatus::Pending,
            State::Running | State::Waiting | State::Delivering => EventStatus::Processing,
            State::Done => EventStatus::Done,
            State::Dead => EventStatus::Dlq,
        }
    }
}

/// An event as a whole, or one of its deliveries.
#[derive(Clone, Debug)]
pub(in crate::model) struct Delivery {
    pub(in crate::model) state: State,
    pub(in crate::model) due: Option<i64>,
    pub(in crate::model) retry_count: u32,
    pub(in crate::model) errors: Vec<String>,
    pub(in crate::model) crashes: u32,
    /// A suspect that could not run and comes back later, concurrently with others.
    pub(in crate::model) was_deferred: bool,
    pub(in crate::model) first_at: Option<i64>,
    pub(in crate::model) changed_at: i64,
}

impl Delivery {
    pub(super) fn new(state: State, due: Option<i64>, now: i64) -> Self {
        Delivery {
            state,
            due,
            retry_count: 0,
            errors: Vec::new(),
            crashes: 0,
            was_deferred: false,
            first_at: None,
            changed_at: now,
        }
    }

    /// Keeps the length of a wait if the clock was set back since the delivery changed.
    pub(super) fn rewind(&mut self, now: i64) {
        /// Smaller differences are drift, not a step.
        const MAX_DRIFT_MS: i64 = 1000;
        if self.state.is_open() && self.changed_at >= now + MAX_DRIFT_MS {
            self.due = self.due.map(|due| due + now - self.changed_at);
            self.changed_at = now;
        }
    }

    pub(super) fn is_due(&self, now: i64) -> bool {
        matches!(self.state, State::Suspect | State::Pending | State::Waiting)
            && self.due.is_some_and(|due| due <= now)
    }
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) struct Attempt {
    pub(in crate::model) number: u32,
    pub(in crate::model) subscription: String,
    pub(in crate::model) started_at: i64,
    pub(in crate::model) class: &'static str,
    pub(in crate::model) delay_ms: i64,
    pub(in crate::model) error: String,
}

/// An entry of the dead-letter queue.
#[derive(Clone, Debug)]
pub(in crate::model) struct DeadLetter {
    pub(in crate::model) subscription: Option<String>,
    pub(in crate::model) reason: &'static str,
    pub(in crate::model) at: i64,
}

/// An event to be published.
#[derive(Clone, Debug)]
pub(in crate::model) struct Draft {
    pub(in crate::model) topic: usize,
    pub(in crate::model) plan: Plan,
    pub(in crate::model) payload: String,
    pub(in crate::model) delay_ms: i64,
    pub(in crate::model) attempts: Option<u32>,
    /// Stored by a process that does not know the subscriptions.
    pub(in crate::model) is_external: bool,
}

#[derive(Clone, Debug)]
pub(in crate::model) struct PlainEvent {
    /// In order of publishing.
    pub(in crate::model) number: u64,
    pub(in crate::model) topic: usize,
    pub(in crate::model) payload: String,
    pub(in crate::model) created_at: i64,
    pub(in crate::model) whole: Delivery,
    pub(in crate::model) deliveries: BTreeMap<String, Delivery>,
    pub(in crate::model) dead_letters: Vec<DeadLetter>,
    pub(in crate::model) attempts_made: Vec<Attempt>,
    /// Errors since the last redrive, with the subscription of a delivery.
    pub(in crate::model) failed: Vec<(Option<String>, String)>,
    pub(super) attempts: Option<u32>,
    pub(super) plan: Plan,
    pub(super) calls: usize,
    /// Redriven while single deliveries were open.
    pub(super) owes: bool,
    /// Deferred as a whole, or redriven.
    pub(super) was_dispatched: bool,
    /// Successful handlers since it was published or redriven, and how often.
    pub(super) handled: BTreeMap<&'static str, u32>,
}

impl PlainEvent {
    pub(super) fn delivery(&mut self, subscription: Option<&str>) -> Option<&mut Delivery> {
        match subscription {
            None => Some(&mut self.whole),
            Some(name) => self.deliveries.get_mut(name),
        }
    }

    pub(super) fn deliveries_mut(&mut self) -> impl Iterator<Item = (Option<&String>, &mut Delivery)> {
        std::iter::once((None, &mut self.whole))
            .chain(self.deliveries.iter_mut().map(|(name, delivery)| (Some(name), delivery)))
    }

    pub(in crate::model) fn all_deliveries(&self) -> impl Iterator<Item = (Option<&String>, &Delivery)> {
        std::iter::once((None, &self.whole))
            .chain(self.deliveries.iter().map(|(name, delivery)| (Some(name), delivery)))
    }

    /// Whether the event waits for its deliveries.
    pub(super) fn is_delivering(&self) -> bool {
        matches!(self.whole.state, State::Delivering | State::Redriven)
    }

    /// Forgets the failed attempts, except those of open deliveries.
    pub(super) fn start_over(&mut self) {
        let is_open =
            |name: &String| self.deliveries.get(name).is_some_and(|delivery| delivery.state.is_open());
        self.failed.retain(|(name, _)| name.as_ref().is_some_and(is_open));
    }

    pub(super) fn owed(&self) -> usize {
        self.deliveries.values().filter(|delivery| delivery.state.is_open()).count()
    }
}
