//! Runs hundreds of random operations and compares the store with a simple model after every few.
//!
//! The model does not predict which of several due rows is claimed when slots are scarce. It checks that each claimed row was due, that
//! none was claimed twice, and that none was left while slots were free.

mod consumer;
mod operator;

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::Restart;
use super::scene::{Worker, at, dead, defer, depth, done, event, name, of, retry, settle, split_off, stats};
use super::walk_model::{ModelRow, Modelled, Random, State};
use crate::dead_letter::{DlqFilter, DlqPage};
use crate::due::Due;
use crate::event::{EventId, EventStatus, Routing};
use crate::lease::LeaseToken;
use crate::query::{Depth, EventFilter, EventPage, Stats};
use crate::store::{Appended, Finished, Store};
use crate::work::{Claimed, Settlement, Verdict};

/// Fixed seeds, so that a failure is reproducible. Every message names the seed and the step.
const SEEDS: [u64; 3] = [1, 2, 3];
const STEPS: usize = 300;
const SLOTS: usize = 12;
const NAMES: [&str; 3] = ["audit", "billing", "mail"];

pub(super) async fn random_operations_agree_with_the_model(store: &Arc<dyn Store>) {
    let mut walk = Walk::new(SEEDS[0], store.as_ref());
    for _ in 0..STEPS * SEEDS.len() {
        walk.step(store.as_ref()).await;
    }
    walk.compare(store.as_ref()).await;
}

pub(super) async fn random_operations_with_crashes_agree_with_the_model<H: Restart>(harness: &mut H) {
    for seed in SEEDS {
        let mut fresh = H::fresh().await;
        std::mem::swap(harness, &mut fresh);
        drop(fresh);
        walk_with_crashes(harness, seed, STEPS).await;
    }
}

/// Runs random operations on a fresh store with a crash after every thirty. Panics where store and model disagree.
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

struct Walk {
    seed: u64,
    steps: usize,
    random: Random,
    now: i64,
    worker: Worker,
    running: Vec<Claimed>,
    /// Claims of a dead process, which it may still try to settle.
    late: Vec<Claimed>,
    /// Leases, most of which have ended.
    leases: Vec<(EventId, String, LeaseToken)>,
    events: BTreeMap<EventId, Modelled>,
}

impl Walk {
    fn new(seed: u64, store: &dyn Store) -> Self {
        let worker = Worker::attach(store, SLOTS);
        Walk {
            seed,
            steps: 0,
            random: Random(seed),
            now: 1000,
            worker,
            running: Vec::new(),
            late: Vec::new(),
            leases: Vec::new(),
            events: BTreeMap::new(),
        }
    }

    fn place(&self) -> String {
        format!("seed {}, step {}", self.seed, self.steps)
    }

    async fn step(&mut self, store: &dyn Store) {
        self.steps += 1;
        self.now += self.random.millis(50);
        match self.random.below(100) {
            0..25 => self.append(store).await,
            25..47 => self.claim(store).await,
            47..55 => self.consume(store).await,
            55..82 => self.settle(store).await,
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
                    new.to =
                        Routing::Each(NAMES[..=self.random.index(3)].iter().map(|text| name(text)).collect());
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
                let is_whole = new.to.subscriptions().is_empty();
                let state = if is_whole { State::Pending } else { State::Delivering };
                let deliveries = new
                    .to
                    .subscriptions()
                    .iter()
                    .map(|subscription| (subscription.to_string(), ModelRow::new(State::Pending, due)));
                let modelled = Modelled {
                    created: self.now,
                    updated: self.now,
                    whole: ModelRow::new(state, due),
                    deliveries: deliveries.collect(),
                    letters: Vec::new(),
                    failed: Vec::new(),
                    new: new.clone(),
                };
                self.events.insert(new.id, modelled);
            }
        }
        self.receive_claims();
    }

    fn any_event(&mut self) -> &mut Modelled {
        let place = self.random.index(self.events.len());
        self.events.values_mut().nth(place).unwrap()
    }

    /// Checks that a claimed row was due, and marks it as running.
    fn receive_claims(&mut self) {
        for claimed in self.worker.handed_over() {
            self.took(claimed, State::Pending);
        }
    }

    /// Checks a claimed row: a suspect, a lease that its consumer holds, or else due work.
    fn took(&mut self, claimed: Claimed, from: State) {
        let (place, now) = (self.place(), self.now);
        let modelled = self.events.get_mut(&claimed.event.id).unwrap();
        assert_eq!(claimed.event.payload, modelled.new.payload, "{place}");
        let row = modelled.row(claimed.subscription.as_ref().map(|name| name.as_str()));
        match from {
            State::Suspect => {
                assert_eq!(row.state, State::Suspect, "{place}: {claimed:?}");
                assert!(row.due <= now, "{place}: {claimed:?} is not due: {row:?}");
            }
            State::Leased => assert_eq!(row.state, State::Leased, "{place}: {claimed:?}"),
            _ => assert!(row.is_due(now), "{place}: {claimed:?} is not due: {row:?}"),
        }
        assert_eq!(claimed.leased_at.is_some(), row.state == State::Leased, "{place}: {row:?}");
        assert_eq!(claimed.attempt, row.retry_count + 1, "{place}");
        let errors = claimed.errors.as_deref().unwrap_or_default();
        assert_eq!(errors, row.errors, "{place}");
        row.state = State::Running;
        if claimed.subscription.is_none() {
            modelled.updated = now;
        } else if modelled.whole.state == State::Redriven {
            modelled.whole.state = State::Delivering;
        }
        self.running.push(claimed);
    }

    async fn claim(&mut self, store: &dyn Store) {
        store.claim(at(self.now)).await.unwrap();
        self.receive_claims();
        let left = self.events.values().flat_map(Modelled::rows).filter(|row| row.is_due(self.now)).count();
        assert!(
            left == 0 || self.worker.sink.free_slots() == 0,
            "{}: {left} due and slots free",
            self.place()
        );
    }

    async fn claim_suspects(&mut self, store: &dyn Store) {
        let sink = self.worker.sink.clone();
        if let Some(claimed) = store.claim_suspect(at(self.now), sink).await.unwrap() {
            self.took(claimed, State::Suspect);
        }
    }

    async fn settle(&mut self, store: &dyn Store) {
        if self.running.is_empty() {
            return;
        }
        let place = self.random.index(self.running.len());
        let claimed = self.running.swap_remove(place);
        let (id, attempt) = (claimed.event.id, claimed.attempt);
        let subscription = claimed.subscription.as_ref().map(|name| name.as_str().to_owned());
        let error = format!("error at step {}", self.steps);
        let later = self.now + self.random.millis(400);
        let mut settlement = match self.random.below(10) {
            0..4 => done(self.now),
            4..7 => retry(self.now, later, &error),
            7 => match claimed.new_lease().filter(|_| self.random.below(4) > 0) {
                Some(token) => self.lease(id, subscription.as_deref(), token, later),
                None => defer(self.now, later),
            },
            8 => dead(self.now, DeadReason::Permanent, &error),
            _ => Settlement { verdict: Verdict::Dead(DeadReason::BudgetSpent), ..done(self.now) },
        };
        if let Some(subscription) = &subscription {
            settlement = of(subscription, settlement);
        }
        // Parks a delivery for a subscription without one, when the whole event ends.
        let may_park =
            subscription.is_none() && matches!(settlement.verdict, Verdict::Done | Verdict::Dead(_));
        if may_park && self.events[&id].deliveries.is_empty() && self.random.below(3) == 0 {
            let deliveries: Vec<_> = NAMES
                .iter()
                .take(1 + self.random.index(3))
                .map(|subscription| (*subscription, later))
                .collect();
            settlement = split_off(settlement, &deliveries);
        }
        let expected = self.settled(id, subscription.as_deref(), attempt, &settlement);
        let finished = settle(store, claimed, settlement.clone()).await;
        let agree = match (finished, expected) {
            // Another promise covers `retried` of several deliveries.
            (Finished::Done { .. }, Finished::Done { .. })
            | (Finished::Dead { .. }, Finished::Dead { .. }) => {
                subscription.is_some() || finished == expected
            }
            _ => finished == expected,
        };
        assert!(
            agree,
            "{}: {finished:?}, not {expected:?}, by {settlement:?} of {subscription:?}",
            self.place()
        );
    }

    /// Settles a lost claim, which must change nothing.
    async fn settle_late(&mut self, store: &dyn Store) {
        // Other promises cover a claim whose event was purged or redriven meanwhile.
        self.late.retain(|claimed| self.events.contains_key(&claimed.event.id));
        let Some(claimed) = self.late.pop() else { return };
        let verdict = if self.random.below(2) == 0 {
            done(self.now)
        } else {
            dead(self.now, DeadReason::Permanent, "too late")
        };
        let shown = format!("{claimed:?}");
        let finished = settle(store, claimed, verdict).await;
        assert_eq!(finished, Finished::Fenced, "{}: {shown}", self.place());
    }

    /// Applies a settlement to the model.
    // Long because: one step for each part of a settlement, in the order of the store.
    fn settled(
        &mut self,
        id: EventId,
        subscription: Option<&str>,
        attempt: u32,
        settlement: &Settlement,
    ) -> Finished {
        let now = self.now;
        let millis = |due: Due| due.at().expect("the walk names instants").as_millis() - at(0).as_millis();
        let modelled = self.events.get_mut(&id).unwrap();
        if let Some(failure) = &settlement.failure {
            modelled.failed.push((subscription.map(str::to_owned), failure.error.clone()));
        }
        let row = modelled.row(subscription);
        if let Some(failure) = &settlement.failure {
            row.retry_count += 1;
            row.errors.push(failure.error.clone());
        }
        // A delivery that is split off keeps the attempts of the event, unless the event has ended without it.
        let (retry_count, errors) = match settlement.verdict {
            Verdict::Dead(_) => (0, Vec::new()),
            _ => (row.retry_count, row.errors.clone()),
        };
        let crashes = row.crashes;
        for (subscription, until) in &settlement.split_off {
            let state = if crashes > 1 { State::Suspect } else { State::Pending };
            let deliveries = ModelRow {
                retry_count,
                crashes,
                errors: errors.clone(),
                ..ModelRow::new(state, millis(*until))
            };
            modelled.deliveries.insert(subscription.to_string(), deliveries);
        }
        let owes = modelled.owes();
        let row = modelled.row(subscription);
        row.state = match settlement.verdict {
            Verdict::Done if subscription.is_none() && owes > 0 => State::Delivering,
            Verdict::Done => State::Done,
            Verdict::Retry(until) | Verdict::ReleaseSuspect(until) => {
                row.due = millis(until);
                State::Waiting
            }
            Verdict::Defer(until) => {
                row.due = millis(until);
                match attempt {
                    _ if crashes > 1 => State::Suspect,
                    1 => State::Pending,
                    _ => State::Waiting,
                }
            }
            Verdict::Lease { token, until } => {
                (row.due, row.lease) = (millis(until.into()), Some(token));
                State::Leased
            }
            Verdict::Dead(_) => State::Dead,
        };
        let state = row.state;
        if state == State::Dead {
            modelled.letters.push(subscription.map(str::to_owned));
        }
        let retried = attempt > 1;
        if subscription.is_none() {
            modelled.updated = now;
            return match state {
                State::Done => Finished::Done { retried },
                State::Dead => Finished::Dead { retried },
                _ => Finished::NotYet,
            };
        }
        if !matches!(modelled.whole.state, State::Delivering | State::Redriven) || modelled.owes() > 0 {
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

    /// Recovers after a crash: running rows are charged, and become suspects the second time.
    async fn recover(&mut self, store: &dyn Store) {
        self.late.append(&mut self.running);
        self.worker = Worker::attach(store, SLOTS);
        let recovered = store.recover(at(self.now)).await.unwrap();
        let (place, now) = (self.place(), self.now);
        let mut charged = 0;
        for modelled in self.events.values_mut() {
            let id = modelled.new.id;
            for (subscription, row) in std::iter::once((None, &mut modelled.whole))
                .chain(
                    modelled
                        .deliveries
                        .iter_mut()
                        .map(|(subscription, row)| (Some(subscription.as_str()), row)),
                )
                .filter(|(_, row)| row.state == State::Running)
            {
                let reported = recovered
                    .iter()
                    .find(|reported| {
                        reported.id == id
                            && reported.subscription.as_ref().map(|name| name.as_str()) == subscription
                    })
                    .unwrap_or_else(|| {
                        panic!("{place}: {id} {subscription:?} was running and is not recovered")
                    });
                row.state = if row.crashes == 0 { State::Pending } else { State::Suspect };
                (row.due, row.crashes) = (row.due.min(now), row.crashes + 1);
                row.retry_count += 1;
                assert_eq!(reported.attempt, row.retry_count, "{place}");
                row.errors.push(reported.error.clone());
                modelled.failed.push((subscription.map(str::to_owned), reported.error.clone()));
                charged += 1;
                if subscription.is_none() {
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
                State::Leased | State::Done | State::Dead | State::Delivering | State::Redriven => {}
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
            let mut errors = shown.errors;
            assert_eq!(shown.retry_count as usize, errors.len(), "{place}: {modelled:?}");
            let mut failed: Vec<_> = modelled.failed.iter().map(|(_, error)| error.clone()).collect();
            // Attempts that one crash ended have no order.
            errors.sort();
            failed.sort();
            assert_eq!(errors, failed, "{place}: {modelled:?}");
            assert_eq!(shown.deliveries.len(), modelled.deliveries.len(), "{place}: {modelled:?}");
            for delivery in &shown.deliveries {
                let row = &modelled.deliveries[delivery.subscription.as_str()];
                assert_eq!(delivery.status, row.state.shown(), "{place}: {modelled:?}");
                assert_eq!(delivery.retry_count, row.retry_count, "{place}: {modelled:?}");
                assert_eq!(delivery.errors, row.errors, "{place}: {modelled:?}");
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
            .flat_map(|modelled| {
                modelled.letters.iter().map(|subscription| (modelled.new.id, subscription.clone()))
            })
            .collect();
        expected.sort();
        assert_eq!(letters, expected, "{place}");
        assert_eq!(
            self.worker.sink.free_slots(),
            SLOTS - self.running.len(),
            "{place}: every slot is accounted for"
        );
        let due = self
            .events
            .values()
            .flat_map(Modelled::rows)
            .filter(|row| matches!(row.state, State::Pending | State::Waiting | State::Leased))
            .map(|row| at(row.due))
            .min();
        assert_eq!(store.refresh_due().await.unwrap(), due, "{place}");
    }
}
