//! Adds up the journal's facts of every event.

use std::collections::{BTreeMap, HashMap, HashSet};

use redrive::EventId;

use crate::journal::{Fact, Refusal, Whom};
use crate::plan::Plan;
use crate::subject::MAX_ATTEMPTS;

/// Facts about one event, from the journal alone.
#[derive(Debug, Default)]
pub struct EventAccount {
    /// Acknowledgement that its publisher received, if any.
    pub acknowledged: Option<Acknowledged>,
    /// Whether its publisher was told that it had ended.
    pub is_finished: bool,
    /// The time at which the event was published, in milliseconds, if a handler has seen it.
    created: Option<i64>,
    /// The latest attempt at which a handler failed; 0 if none has.
    failed: u32,
    /// Number of failed handler calls.
    failures: u64,
    /// Failure counts at the start of each redrive whose outcome is not known yet.
    sending: Vec<u64>,
    /// Failure count, at least, at the last confirmed redrive.
    redriven: Option<u64>,
    /// Lives in which each subscription's handler succeeded.
    pub handled: BTreeMap<String, Vec<u64>>,
    /// Number of redrives that were begun.
    pub redrives: usize,
    /// Plans that its payload may have after a redrive; empty if it was never edited.
    edited: Vec<Plan>,
    /// Whether an edit has certainly replaced the original payload.
    is_edited: bool,
}

/// An acknowledged publish and its content.
#[derive(Debug)]
pub struct Acknowledged {
    /// As it was published.
    pub plan: Plan,
    /// The event's type.
    pub event_type: String,
    /// Published at this time or later, in milliseconds.
    pub since: i64,
    /// Hash of the rest of its content.
    pub content: u64,
}

impl EventAccount {
    /// Whether a plan may stand in its payload.
    pub fn may_have(&self, plan: Plan) -> bool {
        let original = self.acknowledged.as_ref().filter(|_| !self.is_edited).map(|known| known.plan);
        // An event that was never acknowledged may have any plan.
        self.acknowledged.is_none() || original == Some(plan) || self.edited.contains(&plan)
    }

    /// Whether the failures suffice for a dead letter. The last attempt may have ended with its process, before its handler
    /// reported anything.
    pub fn may_have_died(&self) -> bool {
        match self.acknowledged.as_ref().map(|known| known.plan) {
            Some(Plan::Permanent) => self.failed > 0,
            _ => self.failed + 1 >= MAX_ATTEMPTS,
        }
    }

    /// Whether a redrive was confirmed and no handler has failed since: then it is not dead, unless its processes were.
    pub fn must_be_alive(&self) -> bool {
        self.redriven.is_some_and(|before| before == self.failures)
    }

    /// Returns the time at which the event was published, as exactly as is known, or a time before it.
    pub fn created(&self) -> Option<i64> {
        let since = || self.acknowledged.as_ref().map(|known| known.since - MAX_DRIFT_MS);
        self.created.or_else(since)
    }
}

/// Difference between the clock of a store and the wall clock that the store tolerates.
const MAX_DRIFT_MS: i64 = 1000;

/// A deletion that was begun.
#[derive(Debug)]
struct Purge {
    until: i64,
    /// The last event that is meant.
    last: EventId,
    /// Number of dead events that were old enough when it began.
    candidates: u64,
}

/// Upper bound of events that become dead while a purge begins: those in flight and those before their last attempt.
const DIE_MEANWHILE: u64 = 64;

/// All facts of a journal, by event.
#[derive(Debug, Default)]
pub struct Account {
    /// Every event that the journal names.
    pub events: HashMap<EventId, EventAccount>,
    /// Number of processes that have begun.
    pub lives: u32,
    /// Refusals of the bus by kind.
    pub refusals: HashMap<Refusal, u64>,
    /// Events whose publisher was told that they are not stored.
    pub not_stored: HashSet<EventId>,
    /// Batches whose publisher was told that they are not stored.
    pub batches_not_stored: HashSet<u64>,
    /// Events whose publisher got no answer.
    pub unanswered: HashSet<EventId>,
    /// Work that did not end in time, in the words of the drain.
    pub unfinished: Vec<String>,
    /// Dead events that were deleted for certain.
    pub purged: HashSet<EventId>,
    /// Deletions that were begun, and not confirmed yet.
    purges: Vec<Purge>,
    /// Upper bound of deleted events.
    most_purged: u64,
    /// Latest limit of any purge that was begun.
    pub purged_until: Option<i64>,
}

impl Account {
    /// Adds facts, in the order in which they were taken down.
    pub fn add(&mut self, facts: impl IntoIterator<Item = Fact>) {
        facts.into_iter().for_each(|fact| self.add_one(fact));
    }

    fn add_one(&mut self, fact: Fact) {
        match fact {
            // An unconfirmed purge may have deleted any number up to its candidates.
            Fact::Begin { .. } => {
                self.lives += 1;
                for purge in std::mem::take(&mut self.purges) {
                    self.count_purged(purge.candidates.saturating_add(DIE_MEANWHILE));
                }
            }
            Fact::Ack { id, plan, event_type, since, content } => {
                self.not_stored.remove(&id);
                let event_type = event_type.to_string();
                self.of(id).acknowledged = Some(Acknowledged { plan, event_type, since, content });
            }
            Fact::Finished { id } => self.of(id).is_finished = true,
            Fact::Handled { id, subscription, life } => {
                self.of(id).handled.entry(subscription).or_default().push(life);
            }
            Fact::Failed { id, created, attempt, .. } => {
                let known = self.of(id);
                known.created = Some(created);
                known.failed = known.failed.max(attempt);
                known.failures += 1;
            }
            Fact::RedriveBegin { id, edited } => {
                let known = self.of(id);
                known.redrives += 1;
                known.sending.push(known.failures);
                known.edited.extend(edited);
                // A redrive may win or lose the race against a purge.
                self.purged.remove(&id);
            }
            Fact::Redriven { id, edited } => {
                let known = self.of(id);
                // Of several concurrent redrives, the order is unknown.
                known.redriven = known.redriven.max(known.sending.iter().min().copied());
                if let Some(plan) = edited {
                    known.is_edited = true;
                    known.edited = vec![plan];
                }
            }
            Fact::PurgeBegin { until, last, candidates } => {
                self.purges.push(Purge { until, last, candidates });
                self.purged_until = self.purged_until.max(Some(until));
            }
            Fact::Purged { until, count } => {
                let Some(place) = self.purges.iter().position(|purge| purge.until == until) else { return };
                let Purge { last, .. } = self.purges.swap_remove(place);
                self.count_purged(count);
                if self.events.get(&last).is_none_or(|known| known.redrives == 0) {
                    self.purged.insert(last);
                }
            }
            Fact::Refused { whom, refusal, why } => {
                *self.refusals.entry(refusal).or_default() += 1;
                match whom {
                    Whom::Event(id) if refusal == Refusal::NoAnswer => drop(self.unanswered.insert(id)),
                    Whom::Other if refusal == Refusal::NoAnswer => self.unfinished.push(why),
                    Whom::Event(id) if refusal.promises_nothing_stored() && !self.is_acknowledged(&id) => {
                        self.not_stored.insert(id);
                    }
                    Whom::Batch(key) if refusal.promises_nothing_stored() => {
                        self.batches_not_stored.insert(key);
                    }
                    _ => {}
                }
            }
        }
    }

    fn count_purged(&mut self, count: u64) {
        self.most_purged = self.most_purged.saturating_add(count);
    }

    /// Upper bound of deleted events, including purges that were not confirmed.
    pub fn most_purged(&self) -> u64 {
        let open = self.purges.iter().map(|purge| purge.candidates.saturating_add(DIE_MEANWHILE));
        open.fold(self.most_purged, u64::saturating_add)
    }

    fn of(&mut self, id: EventId) -> &mut EventAccount {
        self.events.entry(id).or_default()
    }

    fn is_acknowledged(&self, id: &EventId) -> bool {
        self.events.get(id).is_some_and(|known| known.acknowledged.is_some())
    }

    /// Returns the number of acknowledged events.
    pub fn acknowledged(&self) -> u64 {
        self.events.values().filter(|known| known.acknowledged.is_some()).count() as u64
    }

    /// Number of refusals of this kind.
    pub fn refusals(&self, refusal: Refusal) -> u64 {
        self.refusals.get(&refusal).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use redrive::EventType;

    use super::*;

    fn ack(id: EventId, plan: Plan) -> Fact {
        Fact::Ack { id, plan, event_type: EventType::new("t.work.alone").unwrap(), since: 10, content: 0 }
    }

    #[test]
    fn an_edited_event_has_its_new_plan_once_that_is_certain() {
        let (mut account, id) = (Account::default(), EventId::new());
        account.add([ack(id, Plan::Never)]);
        assert!(account.events[&id].may_have(Plan::Never));
        assert!(!account.events[&id].may_have(Plan::Succeed));
        let edited = Some(Plan::Succeed);
        account.add([Fact::RedriveBegin { id, edited }]);
        assert!(account.events[&id].may_have(Plan::Never));
        assert!(account.events[&id].may_have(Plan::Succeed));
        account.add([Fact::Redriven { id, edited }]);
        assert!(!account.events[&id].may_have(Plan::Never));
        assert!(account.events[&id].may_have(Plan::Succeed));
    }

    #[test]
    fn a_refused_event_is_not_stored_unless_it_was_acknowledged_later() {
        let (mut account, id) = (Account::default(), EventId::new());
        let refused = |refusal| Fact::Refused { whom: Whom::Event(id), refusal, why: String::new() };
        account.add([refused(Refusal::Unknown)]);
        assert!(account.not_stored.is_empty(), "it may be stored");
        account.add([refused(Refusal::DiskFull)]);
        assert!(account.not_stored.contains(&id));
        account.add([ack(id, Plan::Succeed), refused(Refusal::DiskFull)]);
        assert!(account.not_stored.is_empty());
        assert_eq!((account.refusals(Refusal::DiskFull), account.acknowledged()), (2, 1));
    }

    #[test]
    fn an_event_is_deleted_for_certain_when_the_deletion_was_confirmed_and_it_was_not_redriven() {
        let (mut account, id) = (Account::default(), EventId::new());
        let begin = Fact::PurgeBegin { until: 10, last: id, candidates: 1 };
        account.add([begin.clone(), Fact::Begin { seed: 1 }, Fact::Purged { until: 10, count: 1 }]);
        assert!(account.purged.is_empty(), "it was not confirmed to the process that asked");
        account.add([begin.clone(), Fact::Purged { until: 10, count: 1 }]);
        assert!(account.purged.contains(&id));
        account.add([begin, Fact::RedriveBegin { id, edited: None }, Fact::Purged { until: 10, count: 1 }]);
        assert!(account.purged.is_empty());
        assert_eq!(account.purged_until, Some(10));
    }
}
