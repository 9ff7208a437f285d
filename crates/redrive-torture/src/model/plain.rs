//! The bus in plain maps: what must be true after everything that was done and seen.
//!
//! The model does not guess in which order the real bus takes up what is due. It is told by [`watch`](super::watch) when an
//! attempt begins and ends and by the handlers when they are called, checks that each of that is allowed at this instant,
//! and works out by itself what must come of it. Whoever drives both checks afterwards that nothing was left undone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redrive::{EventId, EventStatus, Timestamp, VirtualTime};
use tokio::sync::Notify;

use super::circuit::{Circuit, Leave};
use super::operation::{Act, Plan};
use super::scene::{ATTEMPTS, BASE_MS, Kind, LONGEST_MS, Scene, TOPICS};

/// How long what is owed to a subscription that is not there is put off.
const ORPHAN_MS: i64 = 15_000;

/// The same for what is to run alone.
const LONELY_ORPHAN_MS: i64 = 300_000;

/// More attempts than this at one instant are not work but a circle.
const MOST_AT_ONCE: u32 = 5000;

/// What stands in the errors of an attempt that ended with the process.
const CRASHED: &str = "process ended during the attempt";

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Was running at two ends of the process: runs alone, first of all.
    Suspect,
    Pending,
    Running,
    Waiting,
    Done,
    Dead,
    /// Of an event: in the hands of its deliveries.
    Delivering,
}

impl State {
    pub(super) fn is_open(self) -> bool {
        matches!(self, State::Suspect | State::Pending | State::Running | State::Waiting)
    }

    pub(super) fn shown(self) -> EventStatus {
        match self {
            State::Suspect | State::Pending => EventStatus::Pending,
            State::Running | State::Waiting | State::Delivering => EventStatus::Processing,
            State::Done => EventStatus::Done,
            State::Dead => EventStatus::Dlq,
        }
    }
}

/// An event as a whole, or what one subscription is owed of it.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) state: State,
    pub(super) due: Option<i64>,
    pub(super) retry_count: u32,
    pub(super) errors: Vec<String>,
    pub(super) crashes: u32,
    /// Of a suspect: it could not be tried, and comes back later, when others are under way.
    pub(super) was_put_off: bool,
    pub(super) first_at: Option<i64>,
    pub(super) changed_at: i64,
}

impl Unit {
    fn new(state: State, due: Option<i64>, now: i64) -> Self {
        Unit {
            state,
            due,
            retry_count: 0,
            errors: Vec::new(),
            crashes: 0,
            was_put_off: false,
            first_at: None,
            changed_at: now,
        }
    }

    fn is_due(&self, now: i64) -> bool {
        matches!(self.state, State::Suspect | State::Pending | State::Waiting)
            && self.due.is_some_and(|due| due <= now)
    }
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) subscription: String,
    pub(super) started_at: i64,
    pub(super) class: &'static str,
    pub(super) delay_ms: i64,
    pub(super) error: String,
}

/// An entry of the dead-letter queue.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) subscription: Option<String>,
    pub(super) reason: &'static str,
    pub(super) at: i64,
}

/// What is about to be published.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) topic: usize,
    pub(super) plan: Plan,
    pub(super) payload: String,
    pub(super) delay_ms: i64,
    pub(super) attempts: Option<u32>,
    /// Stored by somebody who does not know the subscriptions.
    pub(super) is_beside: bool,
}

#[derive(Clone, Debug)]
pub(super) struct PlainEvent {
    /// In order of publishing.
    pub(super) number: u64,
    pub(super) topic: usize,
    pub(super) payload: String,
    pub(super) created_at: i64,
    pub(super) whole: Unit,
    pub(super) deliveries: BTreeMap<String, Unit>,
    pub(super) letters: Vec<Letter>,
    pub(super) attempts_made: Vec<Attempt>,
    attempts: Option<u32>,
    plan: Plan,
    calls: usize,
    /// Sent back while single subscriptions were owed something.
    owes: bool,
    /// Who has handled it since it was published or sent back, and how often.
    handled: BTreeMap<&'static str, u32>,
}

impl PlainEvent {
    fn unit(&mut self, addressee: Option<&str>) -> Option<&mut Unit> {
        match addressee {
            None => Some(&mut self.whole),
            Some(name) => self.deliveries.get_mut(name),
        }
    }

    fn units_mut(&mut self) -> impl Iterator<Item = (Option<&String>, &mut Unit)> {
        std::iter::once((None, &mut self.whole))
            .chain(self.deliveries.iter_mut().map(|(name, unit)| (Some(name), unit)))
    }

    pub(super) fn units(&self) -> impl Iterator<Item = (Option<&String>, &Unit)> {
        std::iter::once((None, &self.whole))
            .chain(self.deliveries.iter().map(|(name, unit)| (Some(name), unit)))
    }

    fn owed(&self) -> usize {
        self.deliveries.values().filter(|unit| unit.state.is_open()).count()
    }
}

/// What comes next after an attempt.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Done,
    Retry(i64),
    Defer(i64),
    Dead(&'static str),
}

impl Verdict {
    fn name(&self) -> &'static str {
        match self {
            Verdict::Done => "done",
            Verdict::Retry(_) => "retry",
            Verdict::Defer(_) => "deferred",
            Verdict::Dead(_) => "dead",
        }
    }
}

#[derive(Clone, Debug)]
struct Call {
    leave: Leave,
    is_entered: bool,
    began: i64,
    act: Act,
}

/// An attempt under way.
#[derive(Debug)]
struct Running {
    span: u64,
    id: EventId,
    addressee: Option<String>,
    attempt: u32,
    is_suspect: bool,
    first_at: i64,
    owes: bool,
    payload: String,
    /// Those that match, as places in `subscriptions`, and how many of them have had their turn.
    matching: Vec<usize>,
    turns: usize,
    parked: Vec<(&'static str, i64)>,
    call: Option<Call>,
    end: Option<(Verdict, Option<Attempt>)>,
}

#[derive(Debug)]
struct PlainSubscription {
    kind: &'static Kind,
    circuit: Circuit,
    is_there: bool,
}

/// The numbers that the real bus must have counted in this life.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) published: u64,
    pub(super) duplicates: u64,
    pub(super) attempts: u64,
    pub(super) done: u64,
    pub(super) dead: u64,
    pub(super) unmatched: u64,
    pub(super) parked: u64,
    pub(super) orphaned: u64,
    pub(super) recovered: u64,
}

/// The bus in plain maps.
#[derive(Debug)]
pub(super) struct PlainBus {
    pub(super) time: VirtualTime,
    pub(super) scene: Scene,
    pub(super) events: BTreeMap<EventId, PlainEvent>,
    pub(super) counts: Counts,
    pub(super) violations: Vec<String>,
    /// Told when there is no end to what happens at one instant.
    pub(super) runs_wild: Arc<Notify>,
    /// What has changed since it was last compared.
    pub(super) touched: BTreeSet<EventId>,
    /// Handlers that succeeded more than once for an event.
    pub(super) repetitions: u64,
    /// Everybody who ever was there in this life; places are kept, because what runs goes on.
    subscriptions: Vec<PlainSubscription>,
    /// In order of subscribing.
    order: Vec<usize>,
    running: Vec<Running>,
    /// Of a batch whose ids are not known yet.
    drafts: Vec<Draft>,
    published: u64,
    /// Where the clock stood after it was last set forward.
    jumped_at: i64,
    /// When the last attempt began, and how many there were at that instant.
    last_began: (i64, u32),
    /// How events looked since everything was last at rest.
    seen: BTreeMap<EventId, Vec<PlainEvent>>,
}

impl PlainBus {
    pub(super) fn new(scene: Scene, time: VirtualTime) -> Self {
        PlainBus {
            time,
            scene,
            events: BTreeMap::new(),
            counts: Counts::default(),
            violations: Vec::new(),
            touched: BTreeSet::new(),
            runs_wild: Arc::default(),
            repetitions: 0,
            subscriptions: Vec::new(),
            order: Vec::new(),
            running: Vec::new(),
            drafts: Vec::new(),
            published: 0,
            jumped_at: 0,
            last_began: (0, 0),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn now(&self) -> i64 {
        self.time.now().as_millis()
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    fn blame(&mut self, sentence: String) {
        self.violations.push(sentence);
    }

    /// Everything is at rest: from here on there is one possible past.
    pub(super) fn rest(&mut self) {
        self.seen.clear();
    }

    fn remember(&mut self, id: EventId) {
        if let Some(event) = self.events.get(&id) {
            self.seen.entry(id).or_default().push(event.clone());
            self.touched.insert(id);
        }
    }

    // What is done to it.

    pub(super) fn is_subscribed(&self, kind: &Kind) -> bool {
        self.order.iter().any(|place| self.subscriptions[*place].kind.name == kind.name)
    }

    pub(super) fn subscribe(&mut self, kind: &'static Kind) {
        self.order.push(self.subscriptions.len());
        self.subscriptions.push(PlainSubscription {
            kind,
            circuit: Circuit::new(kind.circuit),
            is_there: true,
        });
    }

    pub(super) fn unsubscribe(&mut self, kind: &Kind) {
        let subscriptions = &mut self.subscriptions;
        self.order.retain(|place| {
            let subscription = &mut subscriptions[*place];
            subscription.is_there = subscription.kind.name != kind.name;
            subscription.is_there
        });
    }

    fn matching(&self, topic: &str) -> Vec<usize> {
        let wants = |place: &usize| self.subscriptions[*place].kind.wants.contains(&topic);
        self.order.iter().copied().filter(wants).collect()
    }

    /// Says whether it is new.
    pub(super) fn publish(&mut self, id: EventId, draft: Draft) -> bool {
        if self.events.contains_key(&id) {
            self.counts.duplicates += u64::from(!draft.is_beside);
            return false;
        }
        let now = self.now();
        let due = Some(now + draft.delay_ms);
        let is_addressed = self.scene.per_subscription && !draft.is_beside;
        let matching = if is_addressed { self.matching(TOPICS[draft.topic]) } else { Vec::new() };
        let name = |place: &usize| self.subscriptions[*place].kind.name.to_owned();
        let deliveries: BTreeMap<_, _> =
            matching.iter().map(|place| (name(place), Unit::new(State::Pending, due, now))).collect();
        let whole = if deliveries.is_empty() {
            Unit::new(State::Pending, due, now)
        } else {
            Unit::new(State::Delivering, None, now)
        };
        self.published += 1;
        self.counts.published += u64::from(!draft.is_beside);
        let event = PlainEvent {
            number: self.published,
            topic: draft.topic,
            payload: draft.payload,
            created_at: now,
            whole,
            deliveries,
            letters: Vec::new(),
            attempts_made: Vec::new(),
            attempts: draft.attempts,
            plan: draft.plan,
            calls: 0,
            owes: false,
            handled: BTreeMap::new(),
        };
        self.events.insert(id, event);
        self.remember(id);
        true
    }

    /// Whether it waits, and nobody is there who would want it.
    pub(super) fn is_unwanted(&self, id: EventId) -> bool {
        let waits_for_nobody = |event: &PlainEvent| {
            event.whole.state == State::Pending
                && event.deliveries.is_empty()
                && self.matching(TOPICS[event.topic]).is_empty()
        };
        !self.scene.unmatched_dies && self.events.get(&id).is_some_and(waits_for_nobody)
    }

    /// It was over when it was stored: a bus that hands work out at that moment knows that nobody wants it.
    pub(super) fn over_at_once(&mut self, id: EventId) {
        let Some(event) = self.events.get_mut(&id) else { return };
        (event.whole.state, event.whole.due) = (State::Done, None);
        self.counts.unmatched += 1;
        self.counts.done += 1;
        self.remember(id);
    }

    /// A batch is on its way; its ids will be known when it is stored.
    pub(super) fn begin_batch(&mut self, drafts: Vec<Draft>) {
        self.drafts = drafts;
        self.drafts.reverse();
    }

    pub(super) fn end_batch(&mut self, ids: &[EventId]) {
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
            self.blame(format!("a batch was taken up in another order than that of its ids: {numbers:?}"));
        }
    }

    pub(super) fn redrive(&mut self, id: EventId, at: i64, edited: Option<(Plan, String)>) -> bool {
        let Some(event) = self.events.get_mut(&id) else { return false };
        let has_dead = event.deliveries.values().any(|unit| unit.state == State::Dead);
        let is_partly_dead = event.whole.state == State::Delivering && has_dead;
        if event.whole.state != State::Dead && !is_partly_dead {
            return false;
        }
        let is_whole = event.letters.iter().any(|letter| letter.subscription.is_none());
        for unit in event.deliveries.values_mut().filter(|unit| unit.state == State::Dead) {
            *unit = Unit::new(State::Pending, Some(at), at);
        }
        event.whole = if is_whole {
            Unit::new(State::Pending, Some(at), at)
        } else {
            Unit::new(State::Delivering, None, at)
        };
        event.owes = event.owed() > 0;
        event.letters.clear();
        event.handled.clear();
        if let Some((plan, payload)) = edited {
            (event.plan, event.payload, event.calls) = (plan, payload, 0);
        }
        self.remember(id);
        true
    }

    /// Those in the dead-letter queue, in the order of its list, each once.
    pub(super) fn dead(&self) -> Vec<EventId> {
        let mut dead: Vec<_> = self
            .events
            .iter()
            .filter(|(_, event)| !event.letters.is_empty())
            .map(|(id, event)| ((event.created_at, event.number), *id))
            .collect();
        dead.sort_unstable();
        dead.into_iter().rev().map(|(_, id)| id).collect()
    }

    /// Of all events in one state.
    pub(super) fn instants(&self, state: State, of: impl Fn(&PlainEvent) -> i64) -> Vec<i64> {
        self.events.values().filter(|event| event.whole.state == state).map(of).collect()
    }

    pub(super) fn purge_dead(&mut self, until: i64) -> u64 {
        self.purge(|event| event.whole.state == State::Dead && event.owed() == 0 && event.created_at <= until)
    }

    pub(super) fn purge_done(&mut self, before: i64) -> u64 {
        self.purge(|event| event.whole.state == State::Done && event.whole.changed_at < before)
    }

    /// Forgets one event that the real bus has forgotten, if that was allowed.
    pub(super) fn forget_if_old(&mut self, id: EventId) -> bool {
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

    fn purge(&mut self, is_meant: impl Fn(&PlainEvent) -> bool) -> u64 {
        let before = self.events.len();
        self.events.retain(|_, event| !is_meant(event));
        (before - self.events.len()) as u64
    }

    /// The clock was set forward.
    pub(super) fn jumped(&mut self) {
        self.jumped_at = self.now();
    }

    // What is seen of the real one.

    /// An attempt begins.
    pub(super) fn began(&mut self, span: u64, id: EventId, addressee: Option<String>, attempt: u32) {
        let now = self.now();
        self.last_began = if self.last_began.0 == now { (now, self.last_began.1 + 1) } else { (now, 1) };
        if self.last_began.1 == MOST_AT_ONCE {
            self.blame(format!("{id} {addressee:?} is taken up for ever"));
            self.runs_wild.notify_one();
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
        let Some(unit) = event.unit(addressee.as_deref()) else {
            return self.blame(format!("{id} is handled for {addressee:?}, who is owed nothing of it"));
        };
        let mut complaint = None;
        if !unit.is_due(now) {
            complaint = Some(format!("{id} {addressee:?} is handled at {now}, and stands so: {unit:?}"));
        } else if attempt != unit.retry_count + 1 {
            complaint = Some(format!("{id} {addressee:?} is handled as attempt {attempt}: {unit:?}"));
        } else if suspects > 0 && unit.state != State::Suspect {
            complaint = Some(format!("{id} {addressee:?} is handled while {suspects} suspects wait"));
        }
        // What was stored and taken up in one step counts from its publishing.
        let (first_at, is_suspect) = (unit.first_at.unwrap_or(now), unit.state == State::Suspect);
        unit.state = State::Running;
        unit.changed_at = now;
        self.violations.extend(complaint);
        let matching = match &addressee {
            None => self.matching(topic),
            Some(name) => {
                let is_meant = |place: &usize| self.subscriptions[*place].kind.name == name;
                self.order.iter().copied().filter(is_meant).collect()
            }
        };
        let running = Running {
            span,
            id,
            addressee,
            attempt,
            is_suspect,
            first_at,
            owes,
            payload,
            matching,
            turns: 0,
            parked: Vec::new(),
            call: None,
            end: None,
        };
        let running = self.decide(running);
        self.running.push(running);
        self.remember(id);
    }

    /// Units that must run alone before anything else, with or without those that come back: they are seen a moment later.
    pub(super) fn suspects(&self, with_put_off: bool) -> usize {
        let now = self.now();
        let units = self.events.values().flat_map(PlainEvent::units);
        let is_meant = |unit: &Unit| unit.state == State::Suspect && (with_put_off || !unit.was_put_off);
        units.filter(|(_, unit)| is_meant(unit) && unit.is_due(now)).count()
    }

    fn decide(&mut self, mut running: Running) -> Running {
        let now = self.now();
        if running.matching.is_empty() {
            running.end = Some(self.nobody(&running));
            return running;
        }
        if self.scene.per_subscription && running.addressee.is_none() {
            running.parked =
                running.matching.iter().map(|place| (self.subscriptions[*place].kind.name, now)).collect();
            running.end = Some((Verdict::Done, None));
            return running;
        }
        if running.attempt > self.attempts_allowed(&running) {
            running.end = Some((Verdict::Dead("attempts_exhausted"), None));
            return running;
        }
        self.next_turn(running)
    }

    fn nobody(&mut self, running: &Running) -> (Verdict, Option<Attempt>) {
        let now = self.now();
        if running.addressee.is_some() {
            self.counts.orphaned += 1;
            let wait = if running.is_suspect { LONELY_ORPHAN_MS } else { ORPHAN_MS };
            return (Verdict::Defer(now + wait), None);
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
        (Verdict::Dead("permanent"), Some(attempt))
    }

    /// Goes to the next subscription whose circuit lets a call through.
    fn next_turn(&mut self, mut running: Running) -> Running {
        let now = self.now();
        while let Some(place) = running.matching.get(running.turns).copied() {
            let subscription = &mut self.subscriptions[place];
            match subscription.circuit.admit(now) {
                Ok(leave) => {
                    running.call = Some(Call { leave, is_entered: false, began: now, act: Act::Succeed });
                    return running;
                }
                Err(until) => {
                    self.counts.parked += 1;
                    running.parked.push((subscription.kind.name, until));
                    running.turns += 1;
                }
            }
        }
        running.call = None;
        running.end = Some(match running.parked.as_slice() {
            [(_, until)] if running.addressee.is_some() => (Verdict::Defer(*until), None),
            _ => (Verdict::Done, None),
        });
        if matches!(running.end, Some((Verdict::Defer(_), _))) {
            running.parked.clear();
        }
        running
    }

    /// The wishes of all who match, the most generous of each; then the event's own.
    fn wishes(&self, running: &Running) -> (u32, i64, i64) {
        let kinds = || running.matching.iter().map(|place| self.subscriptions[*place].kind);
        let attempts = kinds().filter_map(|kind| kind.attempts).max().unwrap_or(ATTEMPTS);
        let base = kinds().filter_map(|kind| kind.base_ms).min().unwrap_or(BASE_MS);
        let longest = kinds().filter_map(|kind| kind.longest_ms).max().unwrap_or(LONGEST_MS);
        let own = self.events.get(&running.id).and_then(|event| event.attempts);
        (own.unwrap_or(attempts), base, longest)
    }

    fn attempts_allowed(&self, running: &Running) -> u32 {
        self.wishes(running).0
    }

    /// A handler is called: what it has to do.
    pub(super) fn called(
        &mut self,
        id: EventId,
        name: &str,
        attempt: u32,
        payload: &str,
    ) -> Option<(u64, Act)> {
        let now = self.now();
        let subscriptions = &self.subscriptions;
        let expected = self.running.iter_mut().find(|running| {
            let place = running.matching.get(running.turns);
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

    /// A handler has come to its end by itself.
    pub(super) fn returned(&mut self, span: u64) {
        let Some(at) = self.running.iter().position(|running| running.span == span) else { return };
        let running = self.running.swap_remove(at);
        let running = self.after_call(running, false);
        self.running.push(running);
    }

    fn after_call(&mut self, mut running: Running, is_cut_off: bool) -> Running {
        let now = self.now();
        let (Some(call), Some(place)) = (running.call.take(), running.matching.get(running.turns).copied())
        else {
            self.blame(format!("a handler of {} ended that was not called", running.id));
            return running;
        };
        let kind = self.subscriptions[place].kind;
        let succeeded = !is_cut_off && matches!(call.act, Act::Succeed | Act::SucceedAfter(_));
        self.subscriptions[place].circuit.record(call.leave, succeeded, now);
        if succeeded {
            running.turns += 1;
            if let Some(event) = self.events.get_mut(&running.id) {
                let times = event.handled.entry(kind.name).or_default();
                *times += 1;
                self.repetitions += u64::from(*times > 1);
            }
            return self.next_turn(running);
        }
        let (class, error, wait) = match call.act {
            _ if is_cut_off => ("timeout", format!("no result within {}", shown(kind.timeout_ms)), 0),
            Act::FailForGood => ("permanent", "for good".to_owned(), 0),
            Act::Panic => ("transient", "panicked: planned".to_owned(), 0),
            Act::AskForTime(wait) => ("throttled", "too much".to_owned(), wait),
            _ => ("transient", "not now".to_owned(), 0),
        };
        let cut_off_at = call.began + kind.timeout_ms;
        // Late only where the clock was set forward over that instant.
        let is_late = now > cut_off_at && !(call.began..=now).contains(&self.jumped_at);
        if is_cut_off && (now < cut_off_at || is_late) {
            self.blame(format!(
                "the handler {} of {} was cut off at {now}, begun at {}",
                kind.name, running.id, call.began
            ));
        }
        let (most, base, longest) = self.wishes(&running);
        let verdict = if class == "permanent" {
            Verdict::Dead("permanent")
        } else if running.attempt >= most {
            Verdict::Dead("attempts_exhausted")
        } else {
            let grown = base.min(longest).saturating_mul(1 << (running.attempt - 1).min(30)).min(longest);
            // Who is tracked on its own does not come back before its circuit lets it through.
            let circuit = match &running.addressee {
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
            running.parked.clear(); // a retry asks everybody again
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

    /// An attempt is about to end: whether with a failure. A handler that has not come to its end was cut off.
    pub(super) fn expects_failure(&mut self, span: u64) -> bool {
        let Some(at) = self.running.iter().position(|running| running.span == span) else { return false };
        let mut running = self.running.swap_remove(at);
        if running.end.is_none() && running.call.as_ref().is_some_and(|call| call.is_entered) {
            running = self.after_call(running, true);
        }
        let has_failed = running.end.as_ref().is_some_and(|(_, attempt)| attempt.is_some());
        self.running.push(running);
        has_failed
    }

    /// The real bus has logged something that somebody should look at.
    pub(super) fn complain(&mut self, target: &str, text: &str) {
        // A shutdown that does not wait for everything says so, as it should.
        if !text.contains("shutting down before everything was handled") {
            self.blame(format!("the bus has logged: {target}: {text}"));
        }
    }

    /// An attempt has ended, and the real bus says how.
    pub(super) fn ended(&mut self, span: u64, said: &Said) {
        let Some(at) = self.running.iter().position(|running| running.span == span) else { return };
        let running = self.running.swap_remove(at);
        let Some((verdict, attempt)) = running.end.clone() else {
            return self.blame(format!("an attempt of {} ended too early: {said:?}", running.id));
        };
        let expected = Said {
            outcome: Some(verdict.name().to_owned()),
            parked: running.parked.len() as u64,
            failed: attempt.as_ref().map(|attempt| attempt.subscription.clone()),
            error: attempt.as_ref().map(|attempt| attempt.error.clone()),
            class: attempt.as_ref().map(|attempt| attempt.class.to_owned()),
            delay_ms: attempt.as_ref().map(|attempt| attempt.delay_ms.unsigned_abs()),
        };
        if *said != expected {
            self.blame(format!(
                "attempt {} of {} {:?} ended as {said:?}, and should as {expected:?}",
                running.attempt, running.id, running.addressee
            ));
        }
        self.settle(&running, &verdict, attempt);
        self.remember(running.id);
    }

    fn settle(&mut self, running: &Running, verdict: &Verdict, attempt: Option<Attempt>) {
        let now = self.now();
        let Some(event) = self.events.get_mut(&running.id) else {
            return self.blame(format!("{} was purged while it was handled", running.id));
        };
        let Some(unit) = event.unit(running.addressee.as_deref()) else { return };
        if unit.state != State::Running || unit.retry_count + 1 != running.attempt {
            return; // it has lost its claim meanwhile
        }
        if let Some(attempt) = &attempt {
            unit.retry_count += 1;
            unit.errors.push(attempt.error.clone());
            unit.first_at = unit.first_at.or(Some(attempt.started_at));
        }
        let is_whole = running.addressee.is_none();
        let goes_on = is_whole && (running.owes || !running.parked.is_empty());
        (unit.state, unit.due) = match verdict {
            Verdict::Done if goes_on => (State::Delivering, None),
            Verdict::Done => (State::Done, None),
            Verdict::Retry(at) => (State::Waiting, Some(*at)),
            Verdict::Defer(at) if unit.crashes > 1 => (State::Suspect, Some(*at)),
            Verdict::Defer(at) if running.attempt > 1 => (State::Waiting, Some(*at)),
            Verdict::Defer(at) => (State::Pending, Some(*at)),
            Verdict::Dead(_) => (State::Dead, None),
        };
        unit.was_put_off = unit.state == State::Suspect;
        unit.changed_at = now;
        event.attempts_made.extend(attempt);
        for (name, until) in &running.parked {
            // What is owed already, or was given up, stays as it is.
            if event.deliveries.get(*name).is_some_and(|unit| unit.state != State::Done) {
                continue;
            }
            let mut owed = Unit::new(State::Pending, Some(*until), now);
            if event.whole.state == State::Delivering {
                // What was tried before counts on.
                owed.retry_count = event.whole.retry_count;
                owed.errors.clone_from(&event.whole.errors);
                owed.first_at = event.whole.first_at;
            }
            // Who was not asked may be what kills the process.
            owed.crashes = event.whole.crashes;
            if owed.crashes > 1 {
                (owed.state, owed.was_put_off) = (State::Suspect, true);
            }
            event.deliveries.insert((*name).to_owned(), owed);
        }
        if let Verdict::Dead(reason) = verdict {
            event.letters.push(Letter { subscription: running.addressee.clone(), reason, at: now });
        }
        match (is_whole, verdict) {
            (true, Verdict::Done) if !goes_on => self.counts.done += 1,
            (true, Verdict::Dead(_)) => self.counts.dead += 1,
            (true, Verdict::Done) | (false, Verdict::Done | Verdict::Dead(_)) => self.finish(running.id),
            _ => {}
        }
    }

    /// The event ends with the last of its deliveries.
    fn finish(&mut self, id: EventId) {
        let now = self.now();
        let Some(event) = self.events.get_mut(&id) else { return };
        if event.owed() > 0 || event.whole.state != State::Delivering {
            return;
        }
        event.whole.changed_at = now;
        if event.deliveries.values().any(|unit| unit.state == State::Dead) {
            event.whole.state = State::Dead;
            self.counts.dead += 1;
        } else {
            event.whole.state = State::Done;
            self.counts.done += 1;
        }
    }

    // The end of a process, and the next one.

    /// What the real bus shows after its process has ended in the middle of things must be one of the pasts that were
    /// possible; the model goes on from that one.
    pub(super) fn possible_pasts(&self, id: EventId) -> Vec<PlainEvent> {
        let mut pasts = self.seen.get(&id).cloned().unwrap_or_default();
        pasts.extend(self.events.get(&id).cloned());
        pasts.reverse();
        pasts
    }

    /// The process has ended: everything in memory is gone.
    pub(super) fn end_life(&mut self, time: VirtualTime) {
        self.time = time;
        self.running.clear();
        self.subscriptions.clear();
        self.order.clear();
        self.drafts.clear();
        self.seen.clear();
        self.counts = Counts::default();
    }

    /// The next one takes back what was running.
    pub(super) fn recover(&mut self) -> usize {
        let now = self.now();
        let mut recovered = 0;
        for event in self.events.values_mut() {
            let mut cut_short = Vec::new();
            for (name, unit) in event.units_mut().filter(|(_, unit)| unit.state == State::Running) {
                cut_short.push(Attempt {
                    number: unit.retry_count + 1,
                    subscription: name.cloned().unwrap_or_default(),
                    started_at: unit.changed_at,
                    class: "crashed",
                    delay_ms: 0,
                    error: CRASHED.to_owned(),
                });
                unit.state = if unit.crashes == 0 { State::Pending } else { State::Suspect };
                unit.due = unit.due.map(|due| due.min(now));
                unit.first_at = unit.first_at.or(Some(unit.changed_at));
                unit.retry_count += 1;
                unit.crashes += 1;
                unit.errors.push(CRASHED.to_owned());
                unit.changed_at = now;
                recovered += 1;
            }
            event.attempts_made.extend(cut_short);
        }
        self.counts.recovered += recovered as u64;
        recovered
    }

    /// Whether a suspect is run at the moment: nothing else is.
    pub(super) fn is_testing_a_suspect(&self) -> bool {
        self.running.iter().any(|running| running.is_suspect)
    }

    /// How many handlers have begun and not ended.
    pub(super) fn in_handlers(&self) -> u64 {
        let is_inside = |running: &&Running| running.call.as_ref().is_some_and(|call| call.is_entered);
        self.running.iter().filter(is_inside).count() as u64
    }

    /// What must hold for every event, whatever has happened.
    pub(super) fn check(&mut self) {
        let mut found = Vec::new();
        for (id, event) in &self.events {
            let dead = event.units().filter(|(_, unit)| unit.state == State::Dead).count();
            let by_delivery =
                event.whole.state == State::Dead && event.letters.iter().all(|l| l.subscription.is_some());
            // An event that died only by its deliveries has no entry of its own.
            if event.letters.len() != dead - usize::from(by_delivery && dead > 0) {
                found.push(format!(
                    "{id} has {} entries in the dead-letter queue: {event:?}",
                    event.letters.len()
                ));
            }
        }
        self.violations.extend(found);
    }

    pub(super) fn has_overdue(&self) -> bool {
        let now = self.now();
        self.events.values().flat_map(PlainEvent::units).any(|(_, unit)| unit.is_due(now))
    }

    /// What is due and was not taken up.
    pub(super) fn overdue(&self) -> Vec<String> {
        let now = self.now();
        let mut overdue = Vec::new();
        for (id, event) in &self.events {
            for (name, unit) in event.units().filter(|(_, unit)| unit.is_due(now)) {
                overdue.push(format!("{id} {name:?} since {}: {:?}", unit.due.unwrap_or(0), unit.state));
            }
        }
        overdue
    }
}

/// What the real bus says of the end of an attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) outcome: Option<String>,
    pub(super) parked: u64,
    pub(super) failed: Option<String>,
    pub(super) error: Option<String>,
    pub(super) class: Option<String>,
    pub(super) delay_ms: Option<u64>,
}

/// A time as the errors of timeouts write it.
fn shown(millis: i64) -> String {
    if millis % 1000 == 0 { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
}

/// An instant of the model as one of the real bus.
pub(super) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}
