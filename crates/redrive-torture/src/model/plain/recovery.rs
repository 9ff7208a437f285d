//! Crash, recovery and invariants of the model.

use redrive::EventId;
use redrive::retry::VirtualTime;

use super::{Attempt, CRASHED, Counts, PlainBus, PlainEvent, Running, State};

impl PlainBus {
    /// Possible states after a crash. The real bus must show one of them; the model continues from that one.
    pub(in crate::model) fn possible_pasts(&self, id: EventId) -> Vec<PlainEvent> {
        let mut pasts = self.seen.get(&id).cloned().unwrap_or_default();
        pasts.extend(self.events.get(&id).cloned());
        pasts.reverse();
        pasts
    }

    /// Ends the life: everything in memory is gone.
    pub(in crate::model) fn end_life(&mut self, time: VirtualTime) {
        self.time = time;
        self.running.clear();
        self.subscriptions.clear();
        self.order.clear();
        self.drafts.clear();
        self.seen.clear();
        self.counts = Counts::default();
    }

    /// Recovers deliveries that were running; returns their number.
    pub(in crate::model) fn recover(&mut self) -> usize {
        let now = self.now();
        self.started_at = now;
        let mut recovered = 0;
        for event in self.events.values_mut() {
            event.deliveries_mut().for_each(|(_, delivery)| delivery.rewind(now));
            let (mut cut_short, mut failed) = (Vec::new(), Vec::new());
            for (name, delivery) in
                event.deliveries_mut().filter(|(_, delivery)| delivery.state == State::Running)
            {
                failed.push((name.cloned(), CRASHED.to_owned()));
                cut_short.push(Attempt {
                    number: delivery.retry_count + 1,
                    subscription: name.cloned().unwrap_or_default(),
                    started_at: delivery.changed_at,
                    class: "crashed",
                    delay_ms: 0,
                    error: CRASHED.to_owned(),
                });
                delivery.state = if delivery.crashes == 0 { State::Pending } else { State::Suspect };
                delivery.due = delivery.due.map(|due| due.min(now));
                delivery.first_at = delivery.first_at.or(Some(delivery.changed_at));
                delivery.retry_count += 1;
                delivery.crashes += 1;
                delivery.errors.push(CRASHED.to_owned());
                delivery.changed_at = now;
                recovered += 1;
            }
            event.failed.extend(failed);
            event.attempts_made.extend(cut_short);
        }
        self.counts.recovered += recovered as u64;
        recovered
    }

    /// Whether a suspect is running: nothing else is.
    pub(in crate::model) fn is_testing_a_suspect(&self) -> bool {
        self.running.iter().any(|running| running.is_suspect)
    }

    /// Number of running handlers.
    pub(in crate::model) fn in_handlers(&self) -> u64 {
        let is_inside = |running: &&Running| running.call.as_ref().is_some_and(|call| call.is_entered);
        self.running.iter().filter(is_inside).count() as u64
    }

    /// Checks the invariants of every event.
    pub(in crate::model) fn check(&mut self) {
        let mut found = Vec::new();
        for (id, event) in &self.events {
            let dead = event.all_deliveries().filter(|(_, delivery)| delivery.state == State::Dead).count();
            let by_delivery = event.whole.state == State::Dead
                && event.dead_letters.iter().all(|l| l.subscription.is_some());
            // An event that is dead only by its deliveries has no entry of its own.
            if event.dead_letters.len() != dead - usize::from(by_delivery && dead > 0) {
                found.push(format!(
                    "{id} has {} entries in the dead-letter queue: {event:?}",
                    event.dead_letters.len()
                ));
            }
        }
        self.violations.extend(found);
    }

    pub(in crate::model) fn has_overdue(&self) -> bool {
        let now = self.now();
        self.events.values().flat_map(PlainEvent::all_deliveries).any(|(_, delivery)| delivery.is_due(now))
    }

    /// Due deliveries that were not claimed.
    pub(in crate::model) fn overdue(&self) -> Vec<String> {
        let now = self.now();
        let mut overdue = Vec::new();
        for (id, event) in &self.events {
            for (name, delivery) in event.all_deliveries().filter(|(_, delivery)| delivery.is_due(now)) {
                overdue.push(format!(
                    "{id} {name:?} since {}: {:?}",
                    delivery.due.unwrap_or(0),
                    delivery.state
                ));
            }
        }
        overdue
    }
}
