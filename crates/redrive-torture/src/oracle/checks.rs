//! Checks of the oracle. The tests of this folder show that each one fires.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redrive::EventId;
use redrive::dlq::DeadLetter;
use redrive::events::{EventDetail, EventStatus};

use super::{Oracle, Picture, Seen, charged, wanting};
use crate::account::EventAccount;
use crate::plan::{Payload, Plan};
use crate::subject::{CRASHED, FRAGILE, MAX_ATTEMPTS, PERMANENT, error_of, follows_plan, wanted_by};

impl Oracle {
    /// Checks that hold at every moment.
    pub(super) fn compare(&mut self, picture: &Picture) {
        self.find_lost(picture);
        for event in picture.events.values() {
            self.check_content(event);
            self.check_errors(event);
            self.check_progress(event);
            self.check_handled(event);
            self.check_charges(event);
        }
        self.check_refused(picture);
        self.check_answers();
        self.check_purged(picture);
        self.check_finished(picture);
        self.check_batches(picture);
        self.check_dead(picture);
        self.remember(picture);
    }

    /// Checks that hold after a drain.
    pub(super) fn compare_ends(&mut self, picture: &Picture) {
        let entries = entries(picture);
        for event in picture.events.values() {
            let plan = payload_of(event).map(|payload| payload.plan);
            match (event.status, plan) {
                (EventStatus::Pending | EventStatus::Processing, _) => {
                    let (id, status) = (event.id, event.status);
                    let owed: Vec<_> = event
                        .deliveries
                        .iter()
                        .map(|owed| format!("{} {}", owed.subscription, owed.status))
                        .collect();
                    self.complain(format!("{id} is {status} though all work is done; of it: {owed:?}"));
                }
                (EventStatus::Done, plan) => self.check_done(event, plan),
                (EventStatus::Dlq, plan) => {
                    for entry in entries.get(&event.id).into_iter().flatten() {
                        self.check_death(event, entry, plan);
                    }
                }
            }
        }
    }

    /// Finds acknowledged events that are neither waiting, running, done nor dead. A purge explains a missing event if it
    /// was old enough, if it can have been dead, and if no more are gone than were deleted.
    fn find_lost(&mut self, picture: &Picture) {
        let mut deleted = 0;
        for (id, known) in &self.account.events {
            let Some(acknowledged) = &known.acknowledged else { continue };
            if picture.events.contains_key(id) {
                continue;
            }
            let is_old_enough =
                known.created().is_some_and(|created| self.account.purged_until >= Some(created));
            let plan = acknowledged.plan;
            // No subscription takes it, so it is dead once a crash was charged to it.
            let may_be_dead = wanted_by(&acknowledged.event_type).is_empty()
                || (plan.dies() && known.may_have_died())
                || self.seen.get(id).is_some_and(|seen| seen.was_charged || seen.status == EventStatus::Dlq);
            if is_old_enough && may_be_dead {
                deleted += 1;
            } else {
                self.lost.entry(*id).or_insert_with(|| {
                    let event_type = &acknowledged.event_type;
                    format!("{id} ({event_type}, {plan}) was acknowledged and is lost")
                });
            }
        }
        let most = self.account.most_purged();
        if deleted > most {
            self.complain(format!("{deleted} events are gone, and only {most} can have been deleted"));
        }
    }

    /// Checks that the event has its published content.
    fn check_content(&mut self, event: &EventDetail) {
        let id = event.id;
        let Some(payload) = payload_of(event) else {
            return self.complain(format!("{id} has a payload that no publisher sent: {}", event.payload));
        };
        if event.metadata.get("n").is_some_and(|n| *n != payload.n.to_string()) {
            self.complain(format!("{id} has the metadata of another event: {:?}", event.metadata));
        }
        let Some(known) = self.account.events.get(&id) else { return };
        let content = payload.content(&event.metadata);
        let is_other = known.acknowledged.as_ref().is_some_and(|known| known.content != content);
        if !known.may_have(payload.plan) || is_other {
            let (payload, metadata) = (&event.payload, &event.metadata);
            self.complain(format!(
                "{id} has the payload or metadata of another event: {payload} {metadata:?}"
            ));
        } else if known
            .acknowledged
            .as_ref()
            .is_some_and(|known| known.event_type != event.event_type.as_str())
        {
            self.complain(format!("{id} has another type than it was published with: {}", event.event_type));
        }
    }

    /// Checks that errors match failed attempts in number and order, for the event and each delivery.
    fn check_errors(&mut self, event: &EventDetail) {
        // Deliveries fail concurrently, so the errors of an event with several deliveries have no common order.
        let deliveries = event.deliveries.iter().map(|delivery| {
            (format!("the delivery to {}", delivery.subscription), delivery.retry_count, &delivery.errors)
        });
        let most = event.deliveries.iter().map(|delivery| delivery.retry_count).max().unwrap_or(0);
        // A redrive counts anew, and leaves open deliveries as they are.
        if event.retry_count < most && self.redrives(event) == 0 {
            let total = event.retry_count;
            self.complain(format!(
                "{} has failed {total} times, and a delivery of it {most} times",
                event.id
            ));
        }
        let mut wrong = Vec::new();
        if event.errors.len() != event.retry_count as usize {
            wrong.push(format!(
                "{}: the event has failed {} times and carries the errors {:?}",
                event.id, event.retry_count, event.errors
            ));
        }
        // The errors of an event are those of all its deliveries, whose attempts are numbered on their own.
        for made in event.attempts.iter().filter(|made| made.class.is_some()) {
            if made.error != CRASHED && !made.error.ends_with(&error_of(made.attempt)) {
                wrong.push(format!("{}: attempt {} has the error {:?}", event.id, made.attempt, made.error));
            }
        }
        for (delivery, retry_count, errors) in deliveries {
            let in_order = errors
                .iter()
                .zip(1..)
                .all(|(error, attempt)| error == CRASHED || error.ends_with(&error_of(attempt)));
            if errors.len() != retry_count as usize || !in_order {
                wrong.push(format!(
                    "{}: {delivery} has failed {retry_count} times and carries the errors {errors:?}",
                    event.id
                ));
            }
        }
        wrong.into_iter().for_each(|what| self.complain(what));
    }

    /// Number of redrives of an event that were begun.
    fn redrives(&self, event: &EventDetail) -> usize {
        self.account.events.get(&event.id).map_or(0, |known| known.redrives)
    }

    /// Checks that no state goes backwards without a redrive.
    fn check_progress(&mut self, event: &EventDetail) {
        let redrives = self.account.events.get(&event.id).map_or(0, |known| known.redrives);
        let Some(seen) = self.seen.get(&event.id) else { return };
        if redrives > seen.redrives {
            return;
        }
        let mut wrong = Vec::new();
        if is_over(seen.status) && event.status != seen.status {
            wrong.push(format!("{} was {} and is {}", event.id, seen.status, event.status));
        }
        if event.retry_count < seen.retry_count {
            let (before, now) = (seen.retry_count, event.retry_count);
            wrong.push(format!("{} had {before} failed attempts and has {now}", event.id));
        }
        // A redriven event visits all subscriptions again, and parks deliveries behind open circuits again, until its end.
        let asks_again = redrives > 0 && !is_over(seen.status);
        let deliveries = if asks_again { &[] } else { event.deliveries.as_slice() };
        for delivery in deliveries {
            let name = delivery.subscription.as_str();
            let Some((status, retry_count)) = seen.deliveries.get(name) else { continue };
            let is_undone = is_over(*status) && delivery.status != *status;
            if is_undone || delivery.retry_count < *retry_count {
                wrong.push(format!(
                    "{}: the delivery to {name} was {status} after {retry_count} failed attempts and is {} after {}",
                    event.id, delivery.status, delivery.retry_count
                ));
            }
        }
        wrong.into_iter().for_each(|sentence| self.complain(sentence));
    }

    /// Checks that refused events are not stored.
    fn check_refused(&mut self, picture: &Picture) {
        let stored: Vec<_> =
            self.account.not_stored.iter().filter(|id| picture.events.contains_key(id)).copied().collect();
        for id in stored {
            self.complain(format!("{id} is stored, though its publisher was told that it is not"));
        }
        let batches = picture.events.values().filter_map(payload_of).filter_map(|payload| payload.batch);
        let stored: BTreeSet<u64> = batches
            .map(|batch| batch.key)
            .filter(|key| self.account.batches_not_stored.contains(key))
            .collect();
        for key in stored {
            self.complain(format!("batch {key} is stored, though its publisher was told that it is not"));
        }
    }

    /// Checks that every waiting publisher got an answer.
    fn check_answers(&mut self) {
        let unanswered: Vec<_> = self.account.unanswered.iter().copied().collect();
        for id in unanswered {
            self.complain(format!("the publisher of {id} waited for its end and got no answer"));
        }
        for why in self.account.unfinished.clone() {
            self.complain(format!("the process lived on, and {why}"));
        }
    }

    /// Checks that purged events are gone.
    fn check_purged(&mut self, picture: &Picture) {
        let there: Vec<_> =
            self.account.purged.iter().filter(|id| picture.events.contains_key(id)).copied().collect();
        for id in there {
            self.complain(format!("{id} is there, though it was purged"));
        }
    }

    /// Checks that no publisher was told of the end of an event too early.
    fn check_finished(&mut self, picture: &Picture) {
        if self.forgets_unsynced {
            return; // the settlement may be lost; that is one redelivery
        }
        let mut early = Vec::new();
        for (id, known) in &self.account.events {
            let event = picture.events.get(id).filter(|_| known.is_finished && known.redrives == 0);
            if let Some(event) = event.filter(|event| !is_over(event.status) && !has_parked(event)) {
                let status = event.status;
                early.push(format!("{id} is {status}, though its publisher was told that it had ended"));
            }
        }
        early.into_iter().for_each(|sentence| self.complain(sentence));
    }

    /// Checks that a batch is stored as a whole or not at all. Checked once, when it is new: later, parts of it may be
    /// purged.
    fn check_batches(&mut self, picture: &Picture) {
        let mut found: HashMap<u64, (u64, u64, i64)> = HashMap::new();
        for event in picture.events.values() {
            let Some(batch) = payload_of(event).and_then(|payload| payload.batch) else { continue };
            let (_, there, since) = found.entry(batch.key).or_insert((batch.size, 0, i64::MAX));
            *there += 1;
            *since = event.created_at.as_millis().min(*since);
        }
        for (key, (size, there, since)) in found {
            // A purge may have come first: an event without a subscription is dead after its first crash.
            let may_be_purged = self.account.purged_until >= Some(since);
            if self.batches.insert(key) && there != size && !may_be_purged {
                self.complain(format!("of batch {key} there are {there} events of {size}"));
            }
        }
    }

    /// Checks that every dead delivery has exactly one dead letter, and that every dead letter has a dead delivery.
    fn check_dead(&mut self, picture: &Picture) {
        let entries = entries(picture);
        for event in picture.events.values() {
            let entries = entries.get(&event.id).map_or(&[][..], Vec::as_slice);
            let whole = entries.iter().filter(|entry| entry.subscription.is_none()).count();
            let mut wrong = Vec::new();
            if whole > 1 {
                wrong.push(format!("it has {whole} dead letters"));
            }
            if whole == 1 && event.status != EventStatus::Dlq {
                wrong.push(format!("it is {} and in the dead-letter queue", event.status));
            }
            if event.status == EventStatus::Dlq && entries.is_empty() {
                wrong.push("it is dead and is not in the dead-letter queue".to_owned());
            }
            let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
            for name in entries.iter().filter_map(|entry| entry.subscription.as_ref()) {
                *by_name.entry(name.as_str()).or_default() += 1;
            }
            // A done event is read without deliveries, and must have no dead letter either.
            for delivery in &event.deliveries {
                let expected = usize::from(delivery.status == EventStatus::Dlq);
                let there = by_name.remove(delivery.subscription.as_str()).unwrap_or(0);
                if there != expected {
                    wrong.push(format!(
                        "its delivery to {} is {} and has {there} dead letters",
                        delivery.subscription, delivery.status
                    ));
                }
            }
            wrong.extend(by_name.into_keys().map(|name| {
                format!("it is in the dead-letter queue for {name}, which has no delivery of it")
            }));
            wrong.into_iter().for_each(|what| self.complain(format!("{}: {what}", event.id)));
        }
        let nowhere: Vec<_> = picture
            .dead
            .iter()
            .filter(|dead| !picture.events.contains_key(&dead.id))
            .map(|dead| dead.id)
            .collect();
        for id in nowhere {
            self.complain(format!("{id} is in the dead-letter queue without an event"));
        }
    }

    /// Checks that every matching subscription has handled a done event: a handler reports before the bus does.
    fn check_handled(&mut self, event: &EventDetail) {
        if event.status != EventStatus::Done {
            return;
        }
        let wanted = wanting(event);
        let handled = self.account.events.get(&event.id).map(|known| &known.handled);
        let missing: Vec<_> = wanted
            .iter()
            .filter(|name| !handled.is_some_and(|handled| handled.contains_key(**name)))
            .copied()
            .collect();
        if !missing.is_empty() {
            self.complain(format!("{} is done and was never handled by {}", event.id, missing.join(", ")));
        }
    }

    /// Checks that no crash is charged twice, and that a redriven event is not dead before the next failure.
    fn check_charges(&mut self, event: &EventDetail) {
        let lives = self.account.lives;
        // Each subscription is charged for each death at most once, and the event counts all of them.
        let mut of_subscriptions: BTreeMap<&str, u32> = BTreeMap::new();
        for made in event.attempts.iter().filter(|made| made.error == CRASHED) {
            *of_subscriptions.entry(&made.subscription).or_default() += 1;
        }
        let of_deliveries = event.deliveries.iter().map(|delivery| charged(&delivery.errors));
        let most = of_subscriptions.into_values().chain(of_deliveries).max().unwrap_or(0);
        if most > lives {
            self.complain(format!(
                "{} was charged for {most} deaths, and there were {lives} lives",
                event.id
            ));
        }
        // Journals of several processes have no common order.
        let is_observed = self.readers.len() <= 1 && !wanting(event).is_empty();
        let known = self.account.events.get(&event.id).filter(|_| is_observed);
        let is_charged = charged(&event.errors) > 0;
        if event.status == EventStatus::Dlq && !is_charged && known.is_some_and(EventAccount::must_be_alive) {
            self.complain(format!("{} was redriven, and is dead as before", event.id));
        }
    }

    /// Checks that a done event was not planned to die.
    fn check_done(&mut self, event: &EventDetail, plan: Option<Plan>) {
        let wanted = wanting(event);
        if let Some(plan) = plan.filter(|plan| plan.dies() && !wanted.is_empty()) {
            self.complain(format!("{} is done, though its plan is {plan}", event.id));
        }
    }

    /// Checks that a dead event was planned to die or lost its attempts to crashes, and that the reason is right.
    fn check_death(&mut self, event: &EventDetail, entry: &DeadLetter, plan: Option<Plan>) {
        let unit = entry.subscription.as_ref().map_or_else(String::new, |name| format!(" for {name}"));
        let last = entry.errors.last().map_or("", String::as_str);
        let attempts = u32::try_from(entry.errors.len()).unwrap_or(u32::MAX);
        let is_permanent = last.starts_with(PERMANENT);
        // Without a subscription an event is done at its first dispatch, and dead at a later one.
        let is_owed = charged(&entry.errors) > 0 || self.redrives(event) > 0;
        let is_unwanted = wanting(event).is_empty() && is_owed;
        if entry.reason == "no_subscription" && is_unwanted {
            return;
        }
        let fits = match entry.reason.as_str() {
            "permanent" => is_permanent,
            "attempts_exhausted" => !is_permanent && attempts >= MAX_ATTEMPTS,
            _ => false,
        };
        if !fits {
            self.complain(format!(
                "{} is dead{unit} because of {:?}, which its errors do not say: {:?}",
                event.id, entry.reason, entry.errors
            ));
        }
        if event.attempts.len() < entry.errors.len() {
            let kept = event.attempts.len();
            self.complain(format!(
                "{} is dead{unit} after {attempts} attempts, of which {kept} are kept",
                event.id
            ));
        }
        let event_type = event.event_type.as_str();
        let follows = entry.subscription.as_ref().is_none_or(|name| follows_plan(event_type, name.as_str()));
        let Some(plan) = plan else { return };
        if follows && plan.dies() {
            return;
        }
        let planned = if follows { plan.failures() } else { 0 };
        let charged = charged(&entry.errors);
        if charged == 0 || attempts < MAX_ATTEMPTS || attempts - charged > planned {
            self.complain(format!(
                "{} is dead{unit}, though its plan is {plan}: {:?}",
                event.id, entry.errors
            ));
        }
    }

    fn remember(&mut self, picture: &Picture) {
        for event in picture.events.values() {
            let known = self.account.events.get(&event.id);
            let was_charged = charged(&event.errors) > 0
                || event.deliveries.iter().any(|delivery| charged(&delivery.errors) > 0)
                || self.seen.get(&event.id).is_some_and(|seen| seen.was_charged);
            let deliveries = event
                .deliveries
                .iter()
                .map(|delivery| (delivery.subscription.to_string(), (delivery.status, delivery.retry_count)))
                .collect();
            let seen = Seen {
                status: event.status,
                retry_count: event.retry_count,
                deliveries,
                was_charged,
                redrives: known.map_or(0, |known| known.redrives),
            };
            self.seen.insert(event.id, seen);
        }
    }
}

fn entries(picture: &Picture) -> HashMap<EventId, Vec<&DeadLetter>> {
    let mut entries: HashMap<EventId, Vec<&DeadLetter>> = HashMap::new();
    for dead in &picture.dead {
        entries.entry(dead.id).or_default().push(dead);
    }
    entries
}

fn payload_of(event: &EventDetail) -> Option<Payload> {
    serde_json::from_str(event.payload.get()).ok()
}

/// Whether only deliveries behind a circuit are open: their publisher does not wait for them.
fn has_parked(event: &EventDetail) -> bool {
    let mut open = event.deliveries.iter().filter(|delivery| !is_over(delivery.status)).peekable();
    open.peek().is_some() && open.all(|delivery| delivery.subscription.as_str() == FRAGILE)
}

fn is_over(status: EventStatus) -> bool {
    matches!(status, EventStatus::Done | EventStatus::Dlq)
}
