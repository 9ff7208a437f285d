//! Operations of callers on the model: subscribing, publishing, redriving, purging.

use std::collections::BTreeMap;

use redrive::EventId;

use super::super::circuit::Circuit;
use super::super::operation::Plan;
use super::super::scene::{Kind, TOPICS};
use super::{Delivery, Draft, PlainBus, PlainEvent, PlainSubscription, State};

impl PlainBus {
    pub(in crate::model) fn is_subscribed(&self, kind: &Kind) -> bool {
        self.order.iter().any(|place| self.subscriptions[*place].kind.name == kind.name)
    }

    /// Replaces the record by what the real bus shows: a crash may have been faster than a registration.
    pub(in crate::model) fn set_on_record(&mut self, kinds: Vec<&'static Kind>) {
        self.on_record = kinds;
    }

    /// Subscriptions on record that are not registered in this life.
    pub(super) fn absent(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        self.on_record.iter().copied().filter(|kind| !self.is_subscribed(kind))
    }

    pub(in crate::model) fn subscribe(&mut self, kind: &'static Kind) {
        self.on_record.retain(|known| known.name != kind.name);
        self.on_record.push(kind);
        self.order.push(self.subscriptions.len());
        self.subscriptions.push(PlainSubscription {
            kind,
            circuit: Circuit::new(kind.circuit),
            is_there: true,
        });
    }

    pub(in crate::model) fn unsubscribe(&mut self, kind: &Kind) {
        self.on_record.retain(|known| known.name != kind.name);
        let subscriptions = &mut self.subscriptions;
        self.order.retain(|place| {
            let subscription = &mut subscriptions[*place];
            subscription.is_there = subscription.kind.name != kind.name;
            subscription.is_there
        });
    }

    pub(super) fn matching(&self, topic: &str) -> Vec<usize> {
        let wants = |place: &usize| self.subscriptions[*place].kind.wants.contains(&topic);
        self.order.iter().copied().filter(wants).collect()
    }

    /// Publishes an event; returns whether its id is new.
    pub(in crate::model) fn publish(&mut self, id: EventId, draft: Draft) -> bool {
        if self.events.contains_key(&id) {
            self.counts.duplicates += u64::from(!draft.is_external);
            return false;
        }
        let now = self.now();
        let due = Some(now + draft.delay_ms);
        let is_per_subscription = self.scene.per_subscription && !draft.is_external;
        let matching = if is_per_subscription { self.matching(TOPICS[draft.topic]) } else { Vec::new() };
        let name = |place: &usize| self.subscriptions[*place].kind.name.to_owned();
        let deliveries: BTreeMap<_, _> =
            matching.iter().map(|place| (name(place), Delivery::new(State::Pending, due, now))).collect();
        let whole = if deliveries.is_empty() {
            Delivery::new(State::Pending, due, now)
        } else {
            Delivery::new(State::Delivering, None, now)
        };
        self.published += 1;
        self.counts.published += u64::from(!draft.is_external);
        let event = PlainEvent {
            number: self.published,
            topic: draft.topic,
            payload: draft.payload,
            created_at: now,
            whole,
            deliveries,
            dead_letters: Vec::new(),
            attempts_made: Vec::new(),
            failed: Vec::new(),
            attempts: draft.attempts,
            plan: draft.plan,
            calls: 0,
            owes: false,
            was_dispatched: false,
            handled: BTreeMap::new(),
        };
        self.events.insert(id, event);
        self.remember(id);
        true
    }

    /// Whether it is pending and no subscription matches.
    pub(in crate::model) fn is_unmatched(&self, id: EventId) -> bool {
        let has_no_match = |event: &PlainEvent| {
            event.whole.state == State::Pending
                && event.deliveries.is_empty()
                && self.matching(TOPICS[event.topic]).is_empty()
                && !self.absent().any(|kind| kind.wants.contains(&TOPICS[event.topic]))
        };
        !self.scene.unmatched_dies && self.events.get(&id).is_some_and(has_no_match)
    }

    /// Marks it as done at once: a dispatching bus knows that no subscription matches.
    pub(in crate::model) fn end_unmatched(&mut self, id: EventId) {
        let Some(event) = self.events.get_mut(&id) else { return };
        (event.whole.state, event.whole.due) = (State::Done, None);
        self.counts.unmatched += 1;
        self.counts.done += 1;
        self.remember(id);
    }

    /// Whether a publisher does not wait for the rest of an event: nothing is running, and what is open waits.
    pub(in crate::model) fn is_parked(&self, id: EventId) -> bool {
        let is_running = |delivery: &Delivery| delivery.state == State::Running;
        self.events.get(&id).is_some_and(|event| {
            let waits_whole = event.whole.state.is_open() && self.matching(TOPICS[event.topic]).is_empty();
            (event.whole.state == State::Delivering || waits_whole)
                && !event.all_deliveries().any(|(_, delivery)| is_running(delivery))
        })
    }

    /// Begins a batch; its ids are known when it is stored.
    pub(in crate::model) fn begin_batch(&mut self, drafts: Vec<Draft>) {
        self.drafts = drafts;
        self.drafts.reverse();
    }

    pub(in crate::model) fn end_batch(&mut self, ids: &[EventId]) {
        for id in ids {
            if !self.events.contains_key(id) {
                match self.drafts.pop() {
                    Some(draft) => drop(self.publish(*id, draft)),
                    None => self.blame(format!("{id} is one too many in its batch")),
                }
            }
        }
        let numbers: Vec<_> = ids.iter().map(|id| self.events[id].number).collect();
        if !numbers.is_sorted() {
            self.blame(format!("a batch was claimed in another order than that of its ids: {numbers:?}"));
        }
    }

    pub(in crate::model) fn redrive(&mut self, id: EventId, at: i64, edited: Option<(Plan, String)>) -> bool {
        let Some(event) = self.events.get_mut(&id) else { return false };
        let has_dead = event.deliveries.values().any(|delivery| delivery.state == State::Dead);
        let is_partly_dead = event.is_delivering() && has_dead;
        if event.whole.state != State::Dead && !is_partly_dead {
            return false;
        }
        let is_whole = event.dead_letters.iter().any(|letter| letter.subscription.is_none());
        event.start_over();
        let is_claimed = event.whole.state == State::Delivering && event.owed() > 0;
        for delivery in event.deliveries.values_mut().filter(|delivery| delivery.state == State::Dead) {
            *delivery = Delivery::new(State::Pending, Some(at), at);
        }
        event.whole = if is_whole {
            Delivery::new(State::Pending, Some(at), at)
        } else {
            Delivery::new(if is_claimed { State::Delivering } else { State::Redriven }, None, at)
        };
        event.owes = event.owed() > 0;
        event.was_dispatched = true;
        event.dead_letters.clear();
        event.handled.clear();
        if let Some((plan, payload)) = edited {
            (event.plan, event.payload, event.calls) = (plan, payload, 0);
        }
        self.remember(id);
        true
    }

    /// Events of the dead-letter queue, in its order, each once.
    pub(in crate::model) fn dead(&self) -> Vec<EventId> {
        let mut dead: Vec<_> = self
            .events
            .iter()
            .filter(|(_, event)| !event.dead_letters.is_empty())
            .map(|(id, event)| ((event.created_at, event.number), *id))
            .collect();
        dead.sort_unstable();
        dead.into_iter().rev().map(|(_, id)| id).collect()
    }

    /// Instants of all events in one state.
    pub(in crate::model) fn instants(&self, state: State, of: impl Fn(&PlainEvent) -> i64) -> Vec<i64> {
        self.events.values().filter(|event| event.whole.state == state).map(of).collect()
    }

    pub(in crate::model) fn purge_dead(&mut self, until: i64) -> u64 {
        self.purge(|event| event.whole.state == State::Dead && event.owed() == 0 && event.created_at <= until)
    }

    pub(in crate::model) fn purge_done(&mut self, before: i64) -> u64 {
        self.purge(|event| event.whole.state == State::Done && event.whole.changed_at < before)
    }

    /// Forgets an event that the real bus has deleted, if its retention allows that.
    pub(in crate::model) fn forget_if_old(&mut self, id: EventId) -> bool {
        let (now, retention) = (self.now(), self.scene.retention_ms);
        let is_old = |event: &PlainEvent| {
            let kept = retention.map_or(i64::MAX, |retention| event.whole.changed_at + retention);
            event.whole.state == State::Done && kept <= now
        };
        let is_allowed = self.events.get(&id).is_some_and(is_old);
        if is_allowed {
            self.events.remove(&id);
        }
        is_allowed
    }

    pub(super) fn purge(&mut self, is_meant: impl Fn(&PlainEvent) -> bool) -> u64 {
        let before = self.events.len();
        self.events.retain(|_, event| !is_meant(event));
        (before - self.events.len()) as u64
    }

    /// Records that the clock was set forward.
    pub(in crate::model) fn jumped(&mut self) {
        self.jumped_at = self.now();
    }
}
