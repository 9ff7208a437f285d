//! Hundreds of random operations, compared with a plain model after every few.
//!
//! What the model leaves to the store: which of several due units is claimed when there is not room for all. The model then
//! checks that each was due, that none was claimed twice, and that none was left while there was room.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_retry::{DeadReason, Timestamp};

use super::Restart;
use super::scene::{Worker, at, dead, defer, depth, done, event, name, of, parked, retry, settle, stats};
use crate::dead_letter::{DlqFilter, DlqPage, Redrive};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, NewEvent, To};
use crate::query::{Depth, EventFilter, EventPage, Stats};
use crate::store::{Appended, Finished, Store};
use crate::work::{Claimed, Settlement, Verdict};

/// Fixed, so that a failure comes again; the seed and the step are in every message.
const SEEDS: [u64; 3] = [1, 2, 3];
const STEPS: usize = 300;
const ROOM: usize = 12;
const NAMES: [&str; 3] = ["audit", "billing", "mail"];

pub(super) async fn any_history_agrees_with_the_model(store: &Arc<dyn Store>) {
    let mut walk = Walk::new(SEEDS[0], store.as_ref());
    for _ in 0..STEPS * SEEDS.len() {
        walk.step(store.as_ref()).await;
    }
    walk.compare(store.as_ref()).await;
}

pub(super) async fn any_history_with_crashes_agrees_with_the_model<H: Restart>(harness: &mut H) {
    for seed in SEEDS {
        let mut fresh = H::fresh().await;
        std::mem::swap(harness, &mut fresh);
        drop(fresh);
        walk_with_crashes(harness, seed, STEPS).await;
    }
}

/// So many random operations on a fresh store, a crash after every thirty of them. Panics where store and model disagree.
pub async fn walk_with_crashes<H: Restart>(harness: &mut H, seed: u64, steps: usize) {
    let mut walk = Walk::new(seed, harness.store().as_ref());
    for step in 1..=steps {
        walk.step(harness.store().as_ref()).await;
        if step % 30 == 0 {
            harness.restart().await;
            walk.recover(harness.store().as_ref()).await;
        }
    }
    walk.compare(harness.store().as_ref()).await;
}

/// Small, and the same everywhere and for ever (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn millis(&mut self, limit: u64) -> i64 {
        i64::try_from(self.below(limit)).unwrap()
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum State {
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
    fn is_open(self) -> bool {
        !matches!(self, State::Done | State::Dead)
    }

    fn shown(self) -> EventStatus {
        match self {
            State::Suspect | State::Pending => EventStatus::Pending,
            State::Running | State::Waiting | State::Delivering => EventStatus::Processing,
            State::Done => EventStatus::Done,
            State::Dead => EventStatus::Dlq,
        }
    }
}

/// An event, or what one subscription is owed of it.
#[derive(Debug)]
struct Unit {
    state: State,
    due: i64,
    retry_count: u32,
    errors: Vec<String>,
    crashes: u32,
}

impl Unit {
    fn new(state: State, due: i64) -> Self {
        Unit { state, due, retry_count: 0, errors: Vec::new(), crashes: 0 }
    }

    fn is_due(&self, now: i64) -> bool {
        matches!(self.state, State::Pending | State::Waiting) && self.due <= now
    }
}

#[derive(Debug)]
struct Modelled {
    new: NewEvent,
    created: i64,
    /// When it was last changed as a whole.
    updated: i64,
    whole: Unit,
    deliveries: BTreeMap<String, Unit>,
    /// The dead letters: who gave up, or nobody in particular.
    letters: Vec<Option<String>>,
}

impl Modelled {
    fn units(&self) -> impl Iterator<Item = &Unit> {
        std::iter::once(&self.whole).chain(self.deliveries.values())
    }

    fn unit(&mut self, addressee: Option<&str>) -> &mut Unit {
        match addressee {
            None => &mut self.whole,
            Some(name) => self.deliveries.get_mut(name).unwrap(),
        }
    }

    fn owes(&self) -> usize {
        self.deliveries.values().filter(|unit| unit.state.is_open()).count()
    }
}

struct Walk {
    seed: u64,
    steps: usize,
    random: Random,
    now: i64,
    worker: Worker,
    held: Vec<Claimed>,
    /// Claims of a process that died, which it would still settle.
    late: Vec<Claimed>,
    events: BTreeMap<EventId, Modelled>,
}

impl Walk {
    fn new(seed: u64, store: &dyn Store) -> Self {
        let worker = Worker::attach(store, ROOM);
        let (random, events) = (Random(seed), BTreeMap::new());
        Walk { seed, steps: 0, random, now: 1000, worker, held: Vec::new(), late: Vec::new(), events }
    }

    fn place(&self) -> String {
        format!("seed {}, step {}", self.seed, self.steps)
    }

    async fn step(&mut self, store: &dyn Store) {
        self.steps += 1;
        self.now += self.random.millis(50);
        match self.random.below(100) {
            0..25 => self.append(store).await,
            25..50 => self.claim(store).await,
            50..82 => self.settle(store).await,
            82..85 => self.settle_late(store).await,
            85..93 => self.redrive(store).await,
            93..95 => self.purge_dead(store).await,
            95..97 => self.purge_done(store).await,
            _ => self.claim_suspects(store).await,
        }
        if self.steps.is_multiple_of(20) {
            self.compare(store).await;
        }
    }

    async fn append(&mut self, store: &dyn Store) {
        let mut batch = Vec::new();
        for _ in 0..=self.random.below(3) {
            let mut new = event(self.now);
            match self.random.below(6) {
                0 => new.due_at = at(self.now + 1 + self.random.millis(500)),
                1 => {
                    new.to = To::Each(NAMES[..=self.random.index(3)].iter().map(|text| name(text)).collect());
                }
                2 if !self.events.is_empty() => new = self.any_event().new.clone(),
                _ => {}
            }
            batch.push(new);
        }
        let answers = store.append(batch.clone()).await.unwrap();
        for (new, answer) in batch.into_iter().zip(answers) {
            let expected =
                if self.events.contains_key(&new.id) { Appended::Duplicate } else { Appended::New };
            assert_eq!(answer, expected, "{}", self.place());
            if answer == Appended::New {
                let due = new.due_at.as_millis() - at(0).as_millis();
                let is_whole = new.to.addressees().is_empty();
                let state = if is_whole { State::Pending } else { State::Delivering };
                let owed =
                    new.to.addressees().iter().map(|who| (who.to_string(), Unit::new(State::Pending, due)));
                let modelled = Modelled {
                    created: self.now,
                    updated: self.now,
                    whole: Unit::new(state, due),
                    deliveries: owed.collect(),
                    letters: Vec::new(),
                    new: new.clone(),
                };
                self.events.insert(new.id, modelled);
            }
        }
        self.take_in();
    }

    fn any_event(&mut self) -> &mut Modelled {
        let place = self.random.index(self.events.len());
        self.events.values_mut().nth(place).unwrap()
    }

    /// What was handed over was due, and is now running.
    fn take_in(&mut self) {
        for claimed in self.worker.handed_over() {
            self.took(claimed, false);
        }
    }

    fn took(&mut self, claimed: Claimed, is_suspect: bool) {
        let (place, now) = (self.place(), self.now);
        let modelled = self.events.get_mut(&claimed.event.id).unwrap();
        assert_eq!(claimed.event.payload, modelled.new.payload, "{place}");
        let unit = modelled.unit(claimed.addressee.as_ref().map(|name| name.as_str()));
        if is_suspect {
            assert_eq!(unit.state, State::Suspect, "{place}: {claimed:?}");
            assert!(unit.due <= now, "{place}: {claimed:?} is not due: {unit:?}");
        } else {
            assert!(unit.is_due(now), "{place}: {claimed:?} is not due: {unit:?}");
        }
        assert_eq!(claimed.attempt, unit.retry_count + 1, "{place}");
        unit.state = State::Running;
        if claimed.addressee.is_none() {
            modelled.updated = now;
        }
        self.held.push(claimed);
    }

    async fn claim(&mut self, store: &dyn Store) {
        store.claim(at(self.now)).await.unwrap();
        self.take_in();
        let left =
            self.events.values().flat_map(Modelled::units).filter(|unit| unit.is_due(self.now)).count();
        assert!(left == 0 || self.worker.sink.room() == 0, "{}: {left} due and room left", self.place());
    }

    async fn claim_suspects(&mut self, store: &dyn Store) {
        let sink = self.worker.sink.clone();
        if let Some(claimed) = store.claim_suspect(at(self.now), sink).await.unwrap() {
            self.took(claimed, true);
        }
    }

    async fn settle(&mut self, store: &dyn Store) {
        if self.held.is_empty() {
            return;
        }
        let place = self.random.index(self.held.len());
        let claimed = self.held.swap_remove(place);
        let (id, attempt) = (claimed.event.id, claimed.attempt);
        let who = claimed.addressee.as_ref().map(|name| name.as_str().to_owned());
        let error = format!("error at step {}", self.steps);
        let later = self.now + self.random.millis(400);
        let mut settlement = match self.random.below(10) {
            0..4 => done(self.now),
            4..7 => retry(self.now, later, &error),
            7 => defer(self.now, later),
            8 => dead(self.now, DeadReason::Permanent, &error),
            _ => Settlement { verdict: Verdict::Dead(DeadReason::BudgetSpent), ..done(self.now) },
        };
        if let Some(who) = &who {
            settlement = of(who, settlement);
        }
        // Parked for whom nothing was parked before, when the event as a whole has come to its end.
        let may_park = who.is_none() && matches!(settlement.verdict, Verdict::Done | Verdict::Dead(_));
        if may_park && self.events[&id].deliveries.is_empty() && self.random.below(3) == 0 {
            let owed: Vec<_> = NAMES.iter().take(1 + self.random.index(3)).map(|who| (*who, later)).collect();
            settlement = parked(settlement, &owed);
        }
        let expected = self.settled(id, who.as_deref(), attempt, &settlement);
        let finished = settle(store, claimed, settlement.clone()).await;
        let agree = match (finished, expected) {
            // Whether one of several deliveries was retried is a promise of its own.
            (Finished::Done { .. }, Finished::Done { .. })
            | (Finished::Dead { .. }, Finished::Dead { .. }) => who.is_some() || finished == expected,
            _ => finished == expected,
        };
        assert!(agree, "{}: {finished:?}, not {expected:?}, by {settlement:?} of {who:?}", self.place());
    }

    /// Who lost its claim changes nothing.
    async fn settle_late(&mut self, store: &dyn Store) {
        // A claim that outlives its event, or its event's return from the dead-letter queue, is a promise of its own.
        self.late.retain(|claimed| self.events.contains_key(&claimed.event.id));
        let Some(claimed) = self.late.pop() else { return };
        let verdict = if self.random.below(2) == 0 {
            done(self.now)
        } else {
            dead(self.now, DeadReason::Permanent, "too late")
        };
        let shown = format!("{claimed:?}");
        let finished = settle(store, claimed, verdict).await;
        assert_eq!(finished, Finished::NotYet, "{}: {shown}", self.place());
    }

    /// What the model makes of a settlement.
    fn settled(&mut self, id: EventId, who: Option<&str>, attempt: u32, settlement: &Settlement) -> Finished {
        let now = self.now;
        let millis = |instant: Timestamp| instant.as_millis() - at(0).as_millis();
        let modelled = self.events.get_mut(&id).unwrap();
        let unit = modelled.unit(who);
        if let Some(failure) = &settlement.failure {
            unit.retry_count += 1;
            unit.errors.push(failure.error.clone());
        }
        // A parked delivery goes on where the event stood, unless the event is over without it.
        let (retry_count, errors) = match settlement.verdict {
            Verdict::Dead(_) => (0, Vec::new()),
            _ => (unit.retry_count, unit.errors.clone()),
        };
        let crashes = unit.crashes;
        for (subscription, until) in &settlement.parked {
            let state = if crashes > 1 { State::Suspect } else { State::Pending };
            let owed =
                Unit { retry_count, crashes, errors: errors.clone(), ..Unit::new(state, millis(*until)) };
            modelled.deliveries.insert(subscription.to_string(), owed);
        }
        let owes = modelled.owes();
        let unit = modelled.unit(who);
        unit.state = match settlement.verdict {
            Verdict::Done if who.is_none() && owes > 0 => State::Delivering,
            Verdict::Done => State::Done,
            Verdict::Retry(until) => {
                unit.due = millis(until);
                State::Waiting
            }
            Verdict::Defer(until) => {
                unit.due = millis(until);
                match attempt {
                    _ if crashes > 1 => State::Suspect,
                    1 => State::Pending,
                    _ => State::Waiting,
                }
            }
            Verdict::Dead(_) => State::Dead,
        };
        let state = unit.state;
        if state == State::Dead {
            modelled.letters.push(who.map(str::to_owned));
        }
        let retried = attempt > 1;
        if who.is_none() {
            modelled.updated = now;
            return match state {
                State::Done => Finished::Done { retried },
                State::Dead => Finished::Dead { retried },
                _ => Finished::NotYet,
            };
        }
        if modelled.whole.state != State::Delivering || modelled.owes() > 0 {
            return Finished::NotYet;
        }
        modelled.updated = now;
        if modelled.letters.is_empty() {
            modelled.whole.state = State::Done;
            Finished::Done { retried }
        } else {
            modelled.whole.state = State::Dead;
            Finished::Dead { retried }
        }
    }

    async fn redrive(&mut self, store: &dyn Store) {
        if self.events.is_empty() {
            return;
        }
        let (now, place) = (self.now, self.place());
        let due = now + self.random.millis(100);
        let modelled = self.any_event();
        if modelled.whole.state == State::Dead && modelled.owes() > 0 {
            return; // a promise of its own
        }
        let result = store.redrive(modelled.new.id, Redrive { at: at(due), payload: None }).await;
        let is_partly_dead = modelled.whole.state == State::Delivering && !modelled.letters.is_empty();
        if modelled.whole.state != State::Dead && !is_partly_dead {
            let expected = modelled.whole.state.shown();
            assert!(
                matches!(result, Err(StoreError::NotDead { status, .. }) if status == expected),
                "{place}: {result:?} for {modelled:?}"
            );
            return;
        }
        assert!(result.is_ok(), "{place}: {result:?} for {modelled:?}");
        let id = modelled.new.id;
        let is_whole = modelled.letters.contains(&None);
        for unit in modelled.deliveries.values_mut().filter(|unit| unit.state == State::Dead) {
            *unit = Unit::new(State::Pending, due);
        }
        modelled.whole = Unit::new(if is_whole { State::Pending } else { State::Delivering }, due);
        modelled.letters.clear();
        modelled.updated = due;
        self.late.retain(|claimed| claimed.event.id != id);
    }

    /// Any instant, or one at which an event that has come to such an end just counts or just does not.
    fn boundary(&mut self, end: State, edge: fn(&Modelled) -> i64) -> i64 {
        let edges: Vec<i64> =
            self.events.values().filter(|modelled| modelled.whole.state == end).map(edge).collect();
        if edges.is_empty() || self.random.below(3) == 0 {
            return self.now - self.random.millis(4000);
        }
        edges[self.random.index(edges.len())] - self.random.millis(2)
    }

    async fn purge_dead(&mut self, store: &dyn Store) {
        let until = self.boundary(State::Dead, |modelled| modelled.created);
        let purged = store.purge_dead(at(until)).await.unwrap();
        let before = self.events.len();
        self.events.retain(|_, modelled| {
            let is_dead = modelled.whole.state == State::Dead && modelled.owes() == 0;
            !(is_dead && modelled.created <= until)
        });
        assert_eq!(purged, (before - self.events.len()) as u64, "{}", self.place());
    }

    async fn purge_done(&mut self, store: &dyn Store) {
        let until = self.boundary(State::Done, |modelled| modelled.updated + 1);
        let purged = store.purge_done(at(until), 1_000_000).await.unwrap();
        let before = self.events.len();
        self.events.retain(|_, modelled| !(modelled.whole.state == State::Done && modelled.updated < until));
        assert_eq!(purged, (before - self.events.len()) as u64, "{}", self.place());
    }

    /// After the death of the process: what was running is charged, and a suspect the second time.
    async fn recover(&mut self, store: &dyn Store) {
        self.late.append(&mut self.held);
        self.worker = Worker::attach(store, ROOM);
        let recovered = store.recover(at(self.now)).await.unwrap();
        let (place, now) = (self.place(), self.now);
        let mut charged = 0;
        for modelled in self.events.values_mut() {
            let id = modelled.new.id;
            for (who, unit) in std::iter::once((None, &mut modelled.whole))
                .chain(modelled.deliveries.iter_mut().map(|(who, unit)| (Some(who.as_str()), unit)))
                .filter(|(_, unit)| unit.state == State::Running)
            {
                let told = recovered
                    .iter()
                    .find(|told| told.id == id && told.addressee.as_ref().map(|name| name.as_str()) == who)
                    .unwrap_or_else(|| panic!("{place}: {id} {who:?} was running and is not recovered"));
                unit.state = if unit.crashes == 0 { State::Pending } else { State::Suspect };
                (unit.due, unit.crashes) = (unit.due.min(now), unit.crashes + 1);
                unit.retry_count += 1;
                assert_eq!(told.attempt, unit.retry_count, "{place}");
                unit.errors.push(told.error.clone());
                charged += 1;
                if who.is_none() {
                    modelled.updated = now;
                }
            }
        }
        assert_eq!(recovered.len(), charged, "{place}: {recovered:?}");
    }

    async fn compare(&self, store: &dyn Store) {
        let place = self.place();
        let (mut counts, mut unfinished) = (Stats::default(), Depth::default());
        for modelled in self.events.values() {
            counts.open_deliveries += modelled.owes() as u64;
            match modelled.whole.state.shown() {
                EventStatus::Pending => counts.pending += 1,
                EventStatus::Processing => counts.processing += 1,
                EventStatus::Done => counts.done += 1,
                EventStatus::Dlq => counts.dlq += 1,
            }
            match modelled.whole.state {
                State::Suspect | State::Pending => unfinished.pending += 1,
                State::Running => unfinished.running += 1,
                State::Waiting => unfinished.waiting += 1,
                State::Done | State::Dead | State::Delivering => {}
            }
        }
        unfinished.open_deliveries = counts.open_deliveries;
        assert_eq!(stats(store).await, counts, "{place}");
        assert_eq!(depth(store).await, unfinished, "{place}");

        let page = EventPage { limit: 1_000_000, after: None };
        let listed = store.events(EventFilter::default(), page).await.unwrap().len();
        assert_eq!(listed, self.events.len(), "{place}");
        for (id, modelled) in &self.events {
            let shown = store.event(*id).await.unwrap();
            assert_eq!(shown.status, modelled.whole.state.shown(), "{place}: {modelled:?}");
            assert_eq!(shown.retry_count, modelled.whole.retry_count, "{place}: {modelled:?}");
            assert_eq!(shown.errors, modelled.whole.errors, "{place}: {modelled:?}");
            assert_eq!(shown.deliveries.len(), modelled.deliveries.len(), "{place}: {modelled:?}");
            for delivery in &shown.deliveries {
                let unit = &modelled.deliveries[delivery.subscription.as_str()];
                assert_eq!(delivery.status, unit.state.shown(), "{place}: {modelled:?}");
                assert_eq!(delivery.retry_count, unit.retry_count, "{place}: {modelled:?}");
                assert_eq!(delivery.errors, unit.errors, "{place}: {modelled:?}");
            }
        }

        let page = DlqPage { limit: 1_000_000, ..DlqPage::default() };
        let letters = store.dead_letters(DlqFilter::default(), page).await.unwrap();
        let mut letters: Vec<_> =
            letters.into_iter().map(|letter| (letter.id, letter.subscription.map(String::from))).collect();
        letters.sort();
        let mut expected: Vec<_> = self
            .events
            .values()
            .flat_map(|modelled| modelled.letters.iter().map(|who| (modelled.new.id, who.clone())))
            .collect();
        expected.sort();
        assert_eq!(letters, expected, "{place}");
        assert_eq!(self.worker.sink.room(), ROOM - self.held.len(), "{place}: no room is lost");
        let due = self
            .events
            .values()
            .flat_map(Modelled::units)
            .filter(|unit| matches!(unit.state, State::Pending | State::Waiting))
            .map(|unit| at(unit.due))
            .min();
        assert_eq!(store.refresh_due().await.unwrap(), due, "{place}");
    }
}
