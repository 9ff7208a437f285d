//! Attempts of the real bus: checks that each is allowed, and computes its outcome.

use redrive::EventId;

use super::super::circuit::Permit;
use super::super::operation::Act;
use super::super::scene::{ATTEMPTS, BASE_MS, MAX_DELAY_MS, TOPICS};
use super::{
    Attempt, DeadLetter, Delivery, MAX_ATTEMPTS_PER_INSTANT, MAX_ORPHAN_MS, MIN_ORPHAN_MS, PlainBus,
    PlainEvent, SUSPECT_ORPHAN_MS, State,
};

/// Outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Done,
    Retry(i64),
    Defer(i64),
    Dead(&'static str),
}

impl Verdict {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Verdict::Done => "done",
            Verdict::Retry(_) => "retry",
            Verdict::Defer(_) => "deferred",
            Verdict::Dead(_) => "dead",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) permit: Permit,
    pub(super) is_entered: bool,
    pub(super) began: i64,
    pub(super) act: Act,
}

/// A running attempt.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) span: u64,
    pub(super) id: EventId,
    pub(super) subscription: Option<String>,
    pub(super) attempt: u32,
    pub(super) is_suspect: bool,
    pub(super) first_at: i64,
    pub(super) owes: bool,
    pub(super) payload: String,
    /// Matching subscriptions, as indexes of `subscriptions`, and how many of them were visited.
    pub(super) matching: Vec<usize>,
    pub(super) visited: usize,
    pub(super) split_off: Vec<(&'static str, i64)>,
    pub(super) call: Option<Call>,
    pub(super) end: Option<(Verdict, Option<Attempt>)>,
}

/// End of an attempt as the real bus reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::model) struct Said {
    pub(in crate::model) outcome: Option<String>,
    pub(in crate::model) split_off: u64,
    pub(in crate::model) failed: Option<String>,
    pub(in crate::model) error: Option<String>,
    pub(in crate::model) class: Option<String>,
    pub(in crate::model) delay_ms: Option<u64>,
}

impl PlainBus {
    /// Records the start of an attempt.
    pub(in crate::model) fn began(
        &mut self,
        span: u64,
        id: EventId,
        subscription: Option<String>,
        attempt: u32,
    ) {
        let now = self.now();
        self.last_began = if self.last_began.0 == now { (now, self.last_began.1 + 1) } else { (now, 1) };
        if self.last_began.1 == MAX_ATTEMPTS_PER_INSTANT {
            self.blame(format!("{id} {subscription:?} is claimed endlessly"));
            self.endless_loop.notify_one();
        }
        if !self.events.contains_key(&id)
            && let Some(draft) = self.drafts.pop()
        {
            self.publish(id, draft);
        }
        let suspects = self.suspects(false);
        let Some(event) = self.events.get_mut(&id) else {
            return self.blame(format!("{id} is handled, and was never published or is purged"));
        };
        let (topic, payload, owes) = (TOPICS[event.topic], event.payload.clone(), event.owes);
        let Some(delivery) = event.delivery(subscription.as_deref()) else {
            return self.blame(format!("{id} is handled for {subscription:?}, which has no delivery of it"));
        };
        let mut complaint = None;
        if !delivery.is_due(now) {
            complaint =
                Some(format!("{id} {subscription:?} is handled at {now}, and its state is {delivery:?}"));
        } else if attempt != delivery.retry_count + 1 {
            complaint = Some(format!("{id} {subscription:?} is handled as attempt {attempt}: {delivery:?}"));
        } else if suspects > 0 && delivery.state != State::Suspect {
            complaint = Some(format!("{id} {subscription:?} is handled while {suspects} suspects wait"));
        }
        // An event that was stored and claimed in one step counts from its publishing.
        let (first_at, is_suspect) = (delivery.first_at.unwrap_or(now), delivery.state == State::Suspect);
        delivery.state = State::Running;
        delivery.changed_at = now;
        if subscription.is_some() && event.whole.state == State::Redriven {
            event.whole.state = State::Delivering;
        }
        self.violations.extend(complaint);
        let matching = match &subscription {
            None => self.matching(topic),
            Some(name) => {
                let is_meant = |place: &usize| self.subscriptions[*place].kind.name == name;
                self.order.iter().copied().filter(is_meant).collect()
            }
        };
        let running = Running {
            span,
            id,
            subscription,
            attempt,
            is_suspect,
            first_at,
            owes,
            payload,
            matching,
            visited: 0,
            split_off: Vec::new(),
            call: None,
            end: None,
        };
        let running = self.decide(running);
        self.running.push(running);
        self.remember(id);
    }

    /// Number of suspects, with or without those that come back: they are seen a moment later.
    pub(in crate::model) fn suspects(&self, with_deferred: bool) -> usize {
        let now = self.now();
        let all_deliveries = self.events.values().flat_map(PlainEvent::all_deliveries);
        let is_meant = |delivery: &Delivery| {
            delivery.state == State::Suspect && (with_deferred || !delivery.was_deferred)
        };
        all_deliveries.filter(|(_, delivery)| is_meant(delivery) && delivery.is_due(now)).count()
    }

    pub(super) fn decide(&mut self, mut running: Running) -> Running {
        let now = self.now();
        if running.matching.is_empty() {
            running.end = Some(self.without_subscription(&running));
            return running;
        }
        if self.scene.per_subscription && running.subscription.is_none() {
            running.split_off =
                running.matching.iter().map(|place| (self.subscriptions[*place].kind.name, now)).collect();
            running.end = Some((Verdict::Done, None));
            return running;
        }
        if running.attempt > self.attempts_allowed(&running) {
            running.end = Some((Verdict::Dead("attempts_exhausted"), None));
            return running;
        }
        self.next_subscription(running)
    }

    pub(super) fn without_subscription(&mut self, running: &Running) -> (Verdict, Option<Attempt>) {
        let now = self.now();
        let event = &self.events[&running.id];
        let is_awaited = match &running.subscription {
            Some(name) => {
                let is_new = running.attempt == 1 && (now - event.created_at).abs() < MAX_ORPHAN_MS;
                is_new || self.absent().any(|kind| kind.name == name)
            }
            None => self.absent().any(|kind| kind.wants.contains(&TOPICS[event.topic])),
        };
        let was_dispatched = event.was_dispatched;
        if is_awaited {
            self.counts.orphaned += 1;
            let short = (now - self.started_at).clamp(MIN_ORPHAN_MS, MAX_ORPHAN_MS);
            let wait = if running.is_suspect { SUSPECT_ORPHAN_MS } else { short };
            return (Verdict::Defer(now + wait), None);
        }
        if running.subscription.is_some() || running.attempt > 1 || was_dispatched {
            return (Verdict::Dead("no_subscription"), None);
        }
        self.counts.unmatched += 1;
        if !self.scene.unmatched_dies {
            return (Verdict::Done, None);
        }
        let attempt = Attempt {
            number: running.attempt,
            subscription: "(none)".to_owned(),
            started_at: now,
            class: "permanent",
            delay_ms: 0,
            error: format!("no subscription matches {}", TOPICS[self.events[&running.id].topic]),
        };
        (Verdict::Dead("no_subscription"), Some(attempt))
    }

    /// Moves on to the next subscription whose circuit admits a call.
    pub(super) fn next_subscription(&mut self, mut running: Running) -> Running {
        let now = self.now();
        while let Some(place) = running.matching.get(running.visited).copied() {
            let subscription = &mut self.subscriptions[place];
            match subscription.circuit.admit(now) {
                Ok(permit) => {
                    running.call = Some(Call { permit, is_entered: false, began: now, act: Act::Succeed });
                    return running;
                }
                Err(until) => {
                    self.counts.parked += 1;
                    running.split_off.push((subscription.kind.name, until));
                    running.visited += 1;
                }
            }
        }
        running.call = None;
        running.end = Some(match running.split_off.as_slice() {
            [(_, until)] if running.subscription.is_some() => (Verdict::Defer(*until), None),
            _ => (Verdict::Done, None),
        });
        if matches!(running.end, Some((Verdict::Defer(_), _))) {
            running.split_off.clear();
        }
        running
    }

    /// Overrides of all matching subscriptions, the most generous of each; then the event's own.
    pub(super) fn overrides(&self, running: &Running) -> (u32, i64, i64) {
        let kinds = || running.matching.iter().map(|place| self.subscriptions[*place].kind);
        let attempts = kinds().filter_map(|kind| kind.attempts).max().unwrap_or(ATTEMPTS);
        let base = kinds().filter_map(|kind| kind.base_ms).min().unwrap_or(BASE_MS);
        let longest = kinds().filter_map(|kind| kind.longest_ms).max().unwrap_or(MAX_DELAY_MS);
        let own = self.events.get(&running.id).and_then(|event| event.attempts);
        (own.unwrap_or(attempts), base, longest)
    }

    pub(super) fn attempts_allowed(&self, running: &Running) -> u32 {
        self.overrides(running).0
    }

    /// Records a handler call and returns its behaviour.
    pub(in crate::model) fn called(
        &mut self,
        id: EventId,
        name: &str,
        attempt: u32,
        payload: &str,
    ) -> Option<(u64, Act)> {
        let now = self.now();
        let subscriptions = &self.subscriptions;
        let expected = self.running.iter_mut().find(|running| {
            let place = running.matching.get(running.visited);
            running.id == id
                && running.attempt == attempt
                && running.call.as_ref().is_some_and(|call| !call.is_entered)
                && place.is_some_and(|place| subscriptions[*place].kind.name == name)
        });
        let Some(running) = expected else {
            self.blame(format!(
                "the handler {name} is called for attempt {attempt} of {id}, and should not be"
            ));
            return None;
        };
        let mut act = Act::Succeed;
        if let Some(event) = self.events.get_mut(&id) {
            act = event.plan.get(event.calls).copied().unwrap_or(Act::Succeed);
            event.calls += 1;
        }
        if let Some(call) = &mut running.call {
            (call.is_entered, call.began, call.act) = (true, now, act);
        }
        self.counts.attempts += 1;
        let (span, expected) = (running.span, running.payload.clone());
        if payload != expected {
            self.blame(format!("{id} came with the payload {payload}, not {expected}"));
        }
        Some((span, act))
    }

    /// Records that a handler returned by itself.
    pub(in crate::model) fn returned(&mut self, span: u64) {
        let Some(at) = self.running.iter().position(|running| running.span == span) else { return };
        let running = self.running.swap_remove(at);
        let running = self.after_call(running, false);
        self.running.push(running);
    }

    pub(super) fn after_call(&mut self, mut running: Running, is_cut_off: bool) -> Running {
        let now = self.now();
        let (Some(call), Some(place)) = (running.call.take(), running.matching.get(running.visited).copied())
        else {
            self.blame(format!("a handler of {} ended that was not called", running.id));
            return running;
        };
        let kind = self.subscriptions[place].kind;
        let succeeded = !is_cut_off && matches!(call.act, Act::Succeed | Act::SucceedAfter(_));
        self.subscriptions[place].circuit.record(call.permit, running.id, succeeded, now);
        if succeeded {
            running.visited += 1;
            if let Some(event) = self.events.get_mut(&running.id) {
                let times = event.handled.entry(kind.name).or_default();
                *times += 1;
                self.repetitions += u64::from(*times > 1);
            }
            return self.next_subscription(running);
        }
        let (class, error, wait) = match call.act {
            _ if is_cut_off => ("timeout", format!("no result within {}", shown(kind.timeout_ms)), 0),
            Act::FailForGood => ("permanent", "for good".to_owned(), 0),
            Act::Panic => ("transient", "panicked: planned".to_owned(), 0),
            Act::AskForTime(wait) => ("throttled", "too much".to_owned(), wait),
            _ => ("transient", "not now".to_owned(), 0),
        };
        let cut_off_at = call.began + kind.timeout_ms;
        // It may be late only where the clock was set forward over that instant.
        let is_late = now > cut_off_at && !(call.began..=now).contains(&self.jumped_at);
        if is_cut_off && (now < cut_off_at || is_late) {
            self.blame(format!(
                "the handler {} of {} was cut off at {now}, begun at {}",
                kind.name, running.id, call.began
            ));
        }
        let (most, base, longest) = self.overrides(&running);
        for earlier in running.matching[..running.visited].iter().copied() {
            let earlier = &mut self.subscriptions[earlier];
            if !running.split_off.iter().any(|(name, _)| *name == earlier.kind.name) {
                earlier.circuit.expect_again(running.id);
            }
        }
        let verdict = if class == "permanent" {
            Verdict::Dead("permanent")
        } else if running.attempt >= most {
            Verdict::Dead("attempts_exhausted")
        } else {
            let grown = base.min(longest).saturating_mul(1 << (running.attempt - 1).min(30)).min(longest);
            // A delivery does not come back before its circuit admits it.
            let circuit = match &running.subscription {
                Some(_) => {
                    self.subscriptions[place].circuit.refuses_until(now).map_or(0, |until| until - now)
                }
                None => 0,
            };
            let at = now + grown.max(wait).max(circuit);
            match self.scene.deadline_ms {
                Some(deadline) if at >= running.first_at + deadline => Verdict::Dead("deadline_exceeded"),
                _ => Verdict::Retry(at),
            }
        };
        let delay_ms = if let Verdict::Retry(at) = verdict { at - now } else { 0 };
        if !matches!(verdict, Verdict::Dead(_)) {
            running.split_off.clear(); // a retry visits all subscriptions again
        }
        let attempt = Attempt {
            number: running.attempt,
            subscription: kind.name.to_owned(),
            started_at: call.began,
            class,
            delay_ms,
            error,
        };
        running.end = Some((verdict, Some(attempt)));
        running
    }

    /// Whether the ending attempt is a failure. A handler that has not returned was cancelled.
    pub(in crate::model) fn expects_failure(&mut self, span: u64) -> bool {
        let Some(at) = self.running.iter().position(|running| running.span == span) else { return false };
        let mut running = self.running.swap_remove(at);
        if running.end.is_none() && running.call.as_ref().is_some_and(|call| call.is_entered) {
            running = self.after_call(running, true);
        }
        let has_failed = running.end.as_ref().is_some_and(|(_, attempt)| attempt.is_some());
        self.running.push(running);
        has_failed
    }

    /// Records a warning or error of the real bus.
    pub(in crate::model) fn complain(&mut self, target: &str, text: &str) {
        // A shutdown that does not drain says so, as it should.
        if !text.contains("the shutdown timeout ended running handlers") {
            self.blame(format!("the bus has logged: {target}: {text}"));
        }
    }

    /// Records the end of an attempt, as the real bus reports it.
    pub(in crate::model) fn ended(&mut self, span: u64, said: &Said) {
        let Some(at) = self.running.iter().position(|running| running.span == span) else { return };
        let running = self.running.swap_remove(at);
        let Some((verdict, attempt)) = running.end.clone() else {
            return self.blame(format!("an attempt of {} ended too early: {said:?}", running.id));
        };
        let expected = Said {
            outcome: Some(verdict.name().to_owned()),
            split_off: running.split_off.len() as u64,
            failed: attempt.as_ref().map(|attempt| attempt.subscription.clone()),
            error: attempt.as_ref().map(|attempt| attempt.error.clone()),
            class: attempt.as_ref().map(|attempt| attempt.class.to_owned()),
            delay_ms: attempt.as_ref().map(|attempt| attempt.delay_ms.unsigned_abs()),
        };
        if *said != expected {
            self.blame(format!(
                "attempt {} of {} {:?} ended as {said:?}, and should as {expected:?}",
                running.attempt, running.id, running.subscription
            ));
        }
        self.settle(&running, &verdict, attempt);
        self.remember(running.id);
    }

    pub(super) fn settle(&mut self, running: &Running, verdict: &Verdict, attempt: Option<Attempt>) {
        let now = self.now();
        let Some(event) = self.events.get_mut(&running.id) else {
            return self.blame(format!("{} was purged while it was handled", running.id));
        };
        let Some(delivery) = event.delivery(running.subscription.as_deref()) else { return };
        if delivery.state != State::Running || delivery.retry_count + 1 != running.attempt {
            return; // it has lost its claim
        }
        if let Some(attempt) = &attempt {
            delivery.retry_count += 1;
            delivery.errors.push(attempt.error.clone());
            delivery.first_at = delivery.first_at.or(Some(attempt.started_at));
        }
        let is_whole = running.subscription.is_none();
        let goes_on = is_whole && (running.owes || !running.split_off.is_empty());
        (delivery.state, delivery.due) = match verdict {
            Verdict::Done if goes_on => (State::Delivering, None),
            Verdict::Done => (State::Done, None),
            Verdict::Retry(at) => (State::Waiting, Some(*at)),
            Verdict::Defer(at) if delivery.crashes > 1 => (State::Suspect, Some(*at)),
            Verdict::Defer(at) if running.attempt > 1 => (State::Waiting, Some(*at)),
            Verdict::Defer(at) => (State::Pending, Some(*at)),
            Verdict::Dead(_) => (State::Dead, None),
        };
        delivery.was_deferred = delivery.state == State::Suspect;
        delivery.changed_at = now;
        event.was_dispatched |= is_whole && matches!(verdict, Verdict::Defer(_));
        let error = attempt.as_ref().map(|attempt| attempt.error.clone());
        event.failed.extend(error.map(|error| (running.subscription.clone(), error)));
        event.attempts_made.extend(attempt);
        for (name, until) in &running.split_off {
            // An open or dead delivery stays as it is.
            if event.deliveries.get(*name).is_some_and(|delivery| delivery.state != State::Done) {
                continue;
            }
            let mut owed = Delivery::new(State::Pending, Some(*until), now);
            if event.whole.state == State::Delivering {
                // Earlier attempts count.
                owed.retry_count = event.whole.retry_count;
                owed.errors.clone_from(&event.whole.errors);
                owed.first_at = event.whole.first_at;
            }
            // A subscription that was not called may be the one that crashes the process.
            owed.crashes = event.whole.crashes;
            if owed.crashes > 1 {
                (owed.state, owed.was_deferred) = (State::Suspect, true);
            }
            event.deliveries.insert((*name).to_owned(), owed);
        }
        if let Verdict::Dead(reason) = verdict {
            event.dead_letters.push(DeadLetter {
                subscription: running.subscription.clone(),
                reason,
                at: now,
            });
        }
        match (is_whole, verdict) {
            (true, Verdict::Done) if !goes_on => self.counts.done += 1,
            (true, Verdict::Dead(_)) => self.counts.dead += 1,
            (true, Verdict::Done) | (false, Verdict::Done | Verdict::Dead(_)) => self.finish(running.id),
            _ => {}
        }
    }

    /// Ends the event with the last of its deliveries.
    pub(super) fn finish(&mut self, id: EventId) {
        let now = self.now();
        let Some(event) = self.events.get_mut(&id) else { return };
        if event.owed() > 0 || !event.is_delivering() {
            return;
        }
        event.whole.changed_at = now;
        if event.deliveries.values().any(|delivery| delivery.state == State::Dead) {
            event.whole.state = State::Dead;
            self.counts.dead += 1;
        } else {
            event.whole.state = State::Done;
            self.counts.done += 1;
        }
    }
}

/// Formats a time like timeout errors do.
fn shown(millis: i64) -> String {
    if millis % 1000 == 0 { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
}
