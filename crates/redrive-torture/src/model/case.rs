//! Runs one random history: applies every operation to both buses and compares them.

use std::sync::{Arc, Mutex};

use redrive::dlq::{DlqFilter, DlqPage, RetryAll};
use redrive::events::EventStatus;
use redrive::retry::{RetryOverride, VirtualTime};
use redrive::store::StoreError;
use redrive::{BusError, EventId};
use redrive_store::Redrive;
use tempfile::TempDir;
use uuid::Uuid;

use super::compare::{difference, taken_up};
use super::life::{Life, Model, lock};
use super::operation::{End, Operation, Plan};
use super::plain::{Draft, PlainBus, State, at};
use super::scene::{KINDS, Kind, MAX_PAYLOAD, Scene, TOPICS, millis_of};
use super::watch::Watch;
use crate::process::in_memory;

/// Operations between two comparisons; touched events are compared each time, all events every tenth time.
const COMPARE_TOUCHED_EVERY: usize = 10;
const COMPARE_ALL_EVERY: usize = 100;

/// Timeout of waiting for the end of an event; an event without subscription never ends.
const WAIT_TIMEOUT_MS: i64 = 20_000;

/// Counters of a case.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
    pub(super) repetitions: u64,
    pub(super) restarts: u64,
}

/// Runs a case to its end, or to the first violation.
pub(super) fn run(scene: &Scene, history: &[Operation], tally: &mut Tally) -> Result<(), String> {
    let time = VirtualTime::new();
    let model = Arc::new(Mutex::new(PlainBus::new(scene.clone(), time.clone())));
    // For this thread, which does everything but the writing.
    let _watched = tracing::subscriber::set_default(Watch::new(Arc::clone(&model)));
    let home = if scene.on_file { Some(in_memory().map_err(|error| error.to_string())?) } else { None };
    let mut case = Case { model, home, life: None, ids: Vec::new(), next: 0, kinds: Vec::new(), tally };
    case.open(time)?;
    case.start(&scene.subscribed, false)?;
    for (step, operation) in history.iter().enumerate() {
        case.tally.operations += 1;
        let next = history.get(step + 1);
        let place = |what: String| format!("operation {step}, {operation:?}: {what}");
        case.apply(operation).map_err(place)?;
        let is_cut_short =
            matches!(next, Some(Operation::Restart { end: End::CrashAtOnce | End::ShutdownAtOnce, .. }));
        if !is_cut_short {
            case.rest().map_err(place)?;
            if next.is_none() || step % COMPARE_ALL_EVERY == COMPARE_ALL_EVERY - 1 {
                case.compare_all().map_err(place)?;
            } else if step % COMPARE_TOUCHED_EVERY == COMPARE_TOUCHED_EVERY - 1 {
                case.compare_touched().map_err(place)?;
            }
        }
    }
    case.finish().map_err(|what| format!("at the end: {what}"))
}

struct Case<'a> {
    model: Model,
    home: Option<TempDir>,
    /// Empty only between two lives.
    life: Option<Life>,
    /// Every published id.
    ids: Vec<EventId>,
    /// Counts payloads and ids.
    next: u64,
    /// Current subscriptions, with their ids.
    kinds: Vec<(usize, String)>,
    tally: &'a mut Tally,
}

impl Case<'_> {
    fn life(&self) -> Result<&Life, String> {
        self.life.as_ref().ok_or_else(|| "there is no bus".to_owned())
    }

    fn new_id(&mut self) -> EventId {
        self.next += 1;
        // Not in the order of publishing: ids of callers seldom are.
        EventId::from_uuid(Uuid::from_u128(u128::from(self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 32))
    }

    fn draft(&mut self, topic: usize, plan: &Plan) -> Draft {
        self.next += 1;
        let payload = format!(r#"{{"n":{}}}"#, self.next);
        Draft { topic, plan: plan.clone(), payload, delay_ms: 0, attempts: None, is_external: false }
    }

    fn open(&mut self, time: VirtualTime) -> Result<(), String> {
        let scene = lock(&self.model).scene.clone();
        let life =
            Life::open(&scene, self.home.as_ref(), time, &self.model).map_err(|error| error.to_string())?;
        self.life = Some(life);
        Ok(())
    }

    fn start(&mut self, kinds: &[usize], is_paused: bool) -> Result<(), String> {
        self.kinds.clear();
        for kind in kinds {
            self.subscribe(*kind)?;
        }
        let life = self.life()?;
        if is_paused {
            life.bus.dispatcher().pause();
        }
        let expected = lock(&self.model).recover();
        let recovered = life.now(life.bus.start()).map_err(|error| error.to_string())?;
        if recovered != expected {
            return Err(format!("{recovered} were recovered, expected {expected}"));
        }
        Ok(())
    }

    fn subscribe(&mut self, kind: usize) -> Result<(), String> {
        let id = self.life()?.subscribe(&KINDS[kind]).map_err(|error| error.to_string())?;
        lock(&self.model).subscribe(&KINDS[kind]);
        self.kinds.push((kind, id));
        Ok(())
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::Publish { topic, plan, delay_ms, attempts } => {
                let mut draft = self.draft(*topic, plan);
                (draft.delay_ms, draft.attempts) = (*delay_ms, *attempts);
                let id = self.new_id();
                self.publish(id, draft)
            }
            Operation::PublishUnder { id, topic, plan } => {
                let draft = self.draft(*topic, plan);
                let id = EventId::from_uuid(Uuid::from_u128(u128::from(*id) + 1));
                self.forget_if_gone(id)?;
                self.publish(id, draft)
            }
            Operation::PublishBatch { topic, plans, too_large } => {
                self.publish_batch(*topic, plans, *too_large)
            }
            Operation::PublishAndWait { topic, plan } => self.publish_and_wait(*topic, plan),
            Operation::PublishExternal { topic, plan, is_told } => {
                self.publish_beside(*topic, plan, *is_told)
            }
            Operation::Subscribe(kind) => {
                if lock(&self.model).is_subscribed(&KINDS[*kind]) {
                    let again = self.life()?.subscribe(&KINDS[*kind]);
                    return match again {
                        Err(BusError::NameTaken { .. }) => Ok(()),
                        other => Err(format!("a duplicate name: {other:?}")),
                    };
                }
                self.subscribe(*kind)
            }
            Operation::Unsubscribe(kind) => self.unsubscribe(&KINDS[*kind]),
            Operation::Pass(millis) => {
                let life = self.life()?;
                life.driven(life.time.clock().sleep(millis_of(*millis)))
            }
            Operation::Jump(millis) => {
                self.life()?.time.advance(millis_of(*millis));
                lock(&self.model).jumped();
                Ok(())
            }
            Operation::Redrive { which, edited } => self.redrive(*which, edited.as_ref()),
            Operation::RedriveAll { per_second } => self.redrive_all(*per_second),
            Operation::PurgeDead { which, beside_ms } => {
                let instants = lock(&self.model).instants(State::Dead, |event| event.created_at);
                self.purge_dead(one_of(&instants, *which) + beside_ms)
            }
            Operation::PurgeDone { which, beside_ms } => {
                let instants = lock(&self.model).instants(State::Done, |event| event.whole.changed_at);
                self.purge_done(one_of(&instants, *which) + beside_ms)
            }
            Operation::Pause => {
                self.life()?.bus.dispatcher().pause();
                Ok(())
            }
            Operation::Resume => {
                self.life()?.bus.dispatcher().resume();
                Ok(())
            }
            Operation::Restart { end, clock_ms, per_subscription, without, is_paused } => {
                self.restart(*end, *clock_ms, *per_subscription, *without, *is_paused)
            }
        }
    }

    fn publish(&mut self, id: EventId, draft: Draft) -> Result<(), String> {
        let is_new = lock(&self.model).publish(id, draft.clone());
        let life = self.life()?;
        let payload: serde_json::Value =
            serde_json::from_str(&draft.payload).map_err(|error| error.to_string())?;
        let mut publish = life.bus.publish(TOPICS[draft.topic], &payload).id(id);
        if draft.delay_ms > 0 {
            publish = publish.delay(millis_of(draft.delay_ms));
        }
        if let Some(attempts) = draft.attempts {
            publish = publish.retry(RetryOverride::new().max_attempts(attempts));
        }
        let answered = match life.now(publish.enqueue()) {
            // Every draft has a payload of its own, so a known id is that of another event.
            Err(BusError::Store(StoreError::IdTaken { id: taken })) if !is_new && taken == id => {
                return Ok(());
            }
            Ok(_) if !is_new => return Err(format!("{id} was published again with another payload")),
            answered => answered.map_err(|error| error.to_string())?,
        };
        self.acknowledged(answered, is_new);
        self.note_unmatched(&[id])?;
        same("published under", answered, id)
    }

    /// The model cannot know whether the bus dispatched when these were stored; their status shows it.
    fn note_unmatched(&mut self, ids: &[EventId]) -> Result<(), String> {
        for id in ids {
            if !lock(&self.model).is_unmatched(*id) {
                continue;
            }
            let life = self.life()?;
            let found = life.now(life.bus.store().event(*id)).map_err(|error| error.to_string())?;
            let mut model = lock(&self.model);
            // Unless it was handled meanwhile, and the model has heard of that.
            if found.status == EventStatus::Done && model.is_unmatched(*id) {
                model.end_unmatched(*id);
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, id: EventId, is_new: bool) {
        if is_new {
            self.ids.push(id);
            self.tally.acknowledged += 1;
        }
    }

    fn publish_batch(&mut self, topic: usize, plans: &[Plan], too_large: bool) -> Result<(), String> {
        let drafts: Vec<_> = plans.iter().map(|plan| self.draft(topic, plan)).collect();
        let mut payloads: Vec<serde_json::Value> = drafts
            .iter()
            .map(|draft| serde_json::from_str(&draft.payload))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        if too_large {
            payloads.push("x".repeat(MAX_PAYLOAD).into());
        } else {
            lock(&self.model).begin_batch(drafts);
        }
        let life = self.life()?;
        let batch = payloads.iter().map(|payload| (TOPICS[topic], payload));
        match life.now(life.bus.publish_batch(batch)) {
            Ok(ids) if !too_large => {
                lock(&self.model).end_batch(&ids);
                for id in &ids {
                    self.acknowledged(*id, true);
                }
                self.note_unmatched(&ids)?;
                same("published", ids.len(), plans.len())
            }
            Err(BusError::Store(StoreError::PayloadTooLarge { .. })) if too_large => Ok(()),
            other => Err(format!("the batch: {other:?}")),
        }
    }

    fn publish_and_wait(&mut self, topic: usize, plan: &Plan) -> Result<(), String> {
        let (draft, id) = (self.draft(topic, plan), self.new_id());
        let is_new = lock(&self.model).publish(id, draft.clone());
        let life = self.life()?;
        let payload: serde_json::Value =
            serde_json::from_str(&draft.payload).map_err(|error| error.to_string())?;
        let publish = life.bus.publish(TOPICS[topic], &payload).id(id);
        let clock = life.time.clock();
        let finished = life.driven(async {
            tokio::select! {
                finished = publish.into_future() => Some(finished),
                () = clock.sleep(millis_of(WAIT_TIMEOUT_MS)) => None,
            }
        })?;
        self.acknowledged(id, is_new);
        self.note_unmatched(&[id])?;
        let state = lock(&self.model).events.get(&id).map(|event| event.whole.state);
        let is_over = state.is_none_or(|state| matches!(state, State::Done | State::Dead));
        match finished {
            Some(Ok(answered)) if is_over || lock(&self.model).is_parked(id) => {
                same("published under", answered, id)
            }
            None if !is_over => Ok(()),
            // The timeout and the end of the event may fall on one instant.
            None => Ok(()),
            other => Err(format!("{id} is {state:?}, and its publisher was told {other:?}")),
        }
    }

    fn publish_beside(&mut self, topic: usize, plan: &Plan, is_told: bool) -> Result<(), String> {
        let Some(home) = &self.home else { return Ok(()) };
        let path = Life::file(home);
        let (mut draft, id) = (self.draft(topic, plan), self.new_id());
        draft.is_external = true;
        let life = self.life()?;
        let payload: serde_json::Value =
            serde_json::from_str(&draft.payload).map_err(|error| error.to_string())?;
        let event = life
            .bus
            .publish(TOPICS[topic], &payload)
            .id(id)
            .into_event()
            .map_err(|error| error.to_string())?;
        lock(&self.model).publish(id, draft);
        beside(&path, &event).map_err(|error| error.to_string())?;
        if is_told {
            self.life()?.bus.wake();
        }
        self.acknowledged(id, true);
        Ok(())
    }

    fn unsubscribe(&mut self, kind: &Kind) -> Result<(), String> {
        let place = self.kinds.iter().position(|(known, _)| KINDS[*known].name == kind.name);
        let (id, is_there) = match place {
            Some(place) => (self.kinds.remove(place).1, true),
            None => ("unknown".to_owned(), false),
        };
        if is_there {
            lock(&self.model).unsubscribe(kind);
        }
        let life = self.life()?;
        let was_there = life.now(life.bus.unsubscribe(&id)).map_err(|error| error.to_string())?;
        same("was subscribed", was_there, is_there)
    }

    fn redrive(&mut self, which: usize, edited: Option<&Plan>) -> Result<(), String> {
        let mut dead = lock(&self.model).dead();
        // Mostly a dead event; sometimes any.
        if dead.is_empty() || which.is_multiple_of(8) {
            dead.clone_from(&self.ids);
        }
        if dead.is_empty() {
            return Ok(());
        }
        let id = dead[which % dead.len()];
        self.forget_if_gone(id)?;
        let edited = edited.map(|plan| {
            let draft = self.draft(0, plan);
            (draft.plan, draft.payload)
        });
        let (now, is_there, status) = {
            let model = lock(&self.model);
            let event = model.events.get(&id);
            (model.now(), event.is_some(), event.map(|event| event.whole.state.shown()))
        };
        let payload = edited.as_ref().map(|(_, payload)| payload.clone());
        let is_dead = lock(&self.model).redrive(id, now, edited);
        let life = self.life()?;
        let answer = life.now(life.bus.store().redrive(id, Redrive { at: at(now), payload }));
        match answer {
            Ok(()) if is_dead => Ok(()),
            Err(StoreError::NotDead { status: shown, .. }) if is_there && !is_dead => {
                same("status", Some(shown), status)
            }
            Err(StoreError::NoSuchEvent { .. }) if !is_there => Ok(()),
            other => Err(format!("{id} is {status:?}, and redriven: {other:?}")),
        }
    }

    fn redrive_all(&mut self, per_second: Option<u32>) -> Result<(), String> {
        let expected = {
            let mut model = lock(&self.model);
            let (now, mut retried, dead) = (model.now(), 0u64, model.dead());
            for id in &dead {
                let wait = per_second.map_or(0, |rate| retried * 1000 / u64::from(rate));
                let due = now + i64::try_from(wait).unwrap_or(0);
                retried += u64::from(model.redrive(*id, due, None));
            }
            (dead.len() as u64, retried)
        };
        let life = self.life()?;
        let dlq = life.bus.dlq();
        let all = dlq.retry_all(DlqFilter::default(), RetryAll { per_second, dry_run: false });
        let report = life.now(all).map_err(|error| error.to_string())?;
        same("matched and redriven", (report.matched, report.retried), expected)
    }

    fn purge_dead(&mut self, until: i64) -> Result<(), String> {
        let life = self.life()?;
        let purged = life.now(life.bus.dlq().purge_until(at(until))).map_err(|error| error.to_string())?;
        same("purged", purged, lock(&self.model).purge_dead(until))
    }

    fn purge_done(&mut self, before: i64) -> Result<(), String> {
        if lock(&self.model).scene.retention_ms.is_some() {
            self.compare_all()?; // events that are gone are not purged
        }
        let life = self.life()?;
        let purge = life.bus.store().purge_done(at(before), 1_000_000);
        let purged = life.now(purge).map_err(|error| error.to_string())?;
        same("purged", purged, lock(&self.model).purge_done(before))
    }

    fn restart(
        &mut self,
        end: End,
        clock_ms: i64,
        per_subscription: bool,
        without: Option<usize>,
        is_paused: bool,
    ) -> Result<(), String> {
        self.tally.restarts += 1;
        let (Some(life), Some(home)) = (self.life.take(), self.home.take()) else {
            return Err("only where there is a file".to_owned());
        };
        match end {
            End::Shutdown | End::ShutdownAtOnce => {
                life.shut_down()?;
                self.home = Some(home);
            }
            End::Crash => self.home = Some(life.crash(&home).map_err(|error| error.to_string())?),
            End::CrashAtOnce => {
                life.abandon();
                self.home = Some(home);
            }
        }
        let then = lock(&self.model).now();
        let time = VirtualTime::starting_at(at(then + clock_ms));
        lock(&self.model).scene.per_subscription = per_subscription;
        self.open(time.clone()).map_err(|why| format!("after {end:?} the file cannot be opened: {why}"))?;
        self.resolve(end, then)?;
        let life = self.life()?;
        let rows = life.now(life.bus.store().subscriptions()).map_err(|error| error.to_string())?;
        let is_on_record = |kind: &&'static Kind| rows.iter().any(|row| row.name.as_str() == kind.name);
        lock(&self.model).set_on_record(KINDS.iter().filter(is_on_record).collect());
        lock(&self.model).end_life(time);
        let kinds: Vec<usize> =
            self.kinds.iter().map(|(kind, _)| *kind).filter(|kind| Some(*kind) != without).collect();
        self.start(&kinds, is_paused)
    }

    /// Finds the possible past that has happened.
    fn resolve(&mut self, end: End, then: i64) -> Result<(), String> {
        let ids: Vec<_> = lock(&self.model).events.keys().copied().collect();
        for id in ids {
            let life = self.life()?;
            let shown = match life.now(life.bus.store().event(id)) {
                Ok(shown) => shown,
                Err(StoreError::NoSuchEvent { .. }) if lock(&self.model).forget_if_old(id) => continue,
                Err(error) => {
                    self.tally.lost += 1;
                    return Err(format!("{id} was acknowledged, and after {end:?}: {error}"));
                }
            };
            let mut pasts = lock(&self.model).possible_pasts(id);
            if end == End::CrashAtOnce {
                // The latest first, each as it was and as it is after one more claim: the time of a claim is not shown, and
                // an earlier claim looks the same.
                let with_claim = |past| {
                    let taken = taken_up(&shown, &past, then);
                    [past, taken]
                };
                pasts = pasts.into_iter().flat_map(with_claim).collect();
            } else {
                pasts.truncate(1);
            }
            let first = pasts.first().and_then(|past| difference(&shown, past));
            let Some(past) = pasts.into_iter().find(|past| difference(&shown, past).is_none()) else {
                return Err(format!("{id} after {end:?}: {}", first.unwrap_or_default()));
            };
            lock(&self.model).events.insert(id, past);
        }
        Ok(())
    }

    /// Waits until both are at rest.
    fn rest(&mut self) -> Result<(), String> {
        self.life()?.rest()?;
        lock(&self.model).rest();
        self.violations()
    }

    fn compare_touched(&mut self) -> Result<(), String> {
        let touched = std::mem::take(&mut lock(&self.model).touched);
        for id in touched {
            self.look_at(id)?;
        }
        Ok(())
    }

    fn violations(&self) -> Result<(), String> {
        let mut model = lock(&self.model);
        model.check();
        if model.violations.is_empty() { Ok(()) } else { Err(model.violations.join("\n    ")) }
    }

    fn look_at(&mut self, id: EventId) -> Result<(), String> {
        let life = self.life()?;
        let shown = life.now(life.bus.store().event(id));
        let model = lock(&self.model);
        match (shown, model.events.get(&id)) {
            (Ok(shown), Some(event)) => {
                difference(&shown, event).map_or(Ok(()), |what| Err(format!("{id}: {what}\n    {event:?}")))
            }
            (Err(StoreError::NoSuchEvent { .. }), None) => Ok(()),
            (Err(StoreError::NoSuchEvent { .. }), Some(_)) => {
                drop(model);
                if lock(&self.model).forget_if_old(id) {
                    return Ok(());
                }
                self.tally.lost += 1;
                Err(format!("{id} was acknowledged and is missing"))
            }
            (Ok(shown), None) => Err(format!("{id} was purged, and is still there: {shown:?}")),
            (Err(error), _) => Err(format!("{id}: {error}")),
        }
    }

    /// Accepts that an event is gone after its retention.
    fn forget_if_gone(&mut self, id: EventId) -> Result<(), String> {
        if lock(&self.model).events.contains_key(&id) { self.look_at(id) } else { Ok(()) }
    }

    fn compare_all(&mut self) -> Result<(), String> {
        let ids: Vec<_> = lock(&self.model).events.keys().copied().collect();
        for id in ids {
            self.look_at(id)?;
        }
        let life = self.life()?;
        let page = DlqPage { limit: u32::MAX, ..DlqPage::default() };
        let listed =
            life.now(life.bus.dlq().list(DlqFilter::default(), page)).map_err(|error| error.to_string())?;
        let metrics = life.now(life.bus.metrics()).map_err(|error| error.to_string())?;
        let model = lock(&self.model);
        let mut shown: Vec<_> = listed
            .into_iter()
            .map(|letter| {
                let who = letter.subscription.map(String::from);
                (letter.id, who, letter.reason, letter.dlq_at, letter.retry_count, letter.errors)
            })
            .collect();
        shown.sort_unstable();
        let mut expected = Vec::new();
        for (id, event) in &model.events {
            for letter in &event.dead_letters {
                let who = letter.subscription.clone();
                let delivery = who.as_ref().and_then(|who| event.deliveries.get(who)).unwrap_or(&event.whole);
                let (reason, errors) = (letter.reason.to_owned(), delivery.errors.clone());
                expected.push((*id, who, reason, at(letter.at), delivery.retry_count, errors));
            }
        }
        expected.sort_unstable();
        same("the dead-letter queue", shown, expected)?;
        let counted = super::plain::Counts {
            published: metrics.published,
            duplicates: metrics.duplicates,
            attempts: metrics.attempts,
            done: metrics.done,
            dead: metrics.dead,
            unmatched: metrics.unmatched,
            parked: metrics.parked,
            orphaned: metrics.orphaned,
            recovered: metrics.recovered,
        };
        let mut expected = model.counts.clone();
        // The bus counts when a handler has ended, the model when it begins.
        expected.attempts -= model.in_handlers();
        same("the counters", counted, expected)?;
        let open = model.events.values().filter(|event| event.whole.state.shown() != EventStatus::Done);
        let waits = |state: State| open.clone().filter(|event| event.whole.state == state).count() as u64;
        let depth = metrics.depth;
        same("running", depth.running, waits(State::Running))?;
        same("waiting", depth.waiting, waits(State::Waiting))?;
        same("pending", depth.pending, waits(State::Pending) + waits(State::Suspect))
    }

    /// Drains the rest and closes the bus.
    fn finish(mut self) -> Result<(), String> {
        self.tally.repetitions += lock(&self.model).repetitions;
        let life = self.life.take().ok_or_else(|| "there is no bus".to_owned())?;
        life.shut_down()
    }
}

fn beside(path: &std::path::Path, event: &redrive::store::NewEvent) -> Result<(), StoreError> {
    let mut connection = rusqlite::Connection::open(path)?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    redrive::store::sqlite::append_in(&transaction, std::slice::from_ref(event))?;
    Ok(transaction.commit()?)
}

/// One of the instants; long ago if there is none.
fn one_of(instants: &[i64], which: usize) -> i64 {
    if instants.is_empty() { 0 } else { instants[which % instants.len()] }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, real: T, model: T) -> Result<(), String> {
    if real == model { Ok(()) } else { Err(format!("{what}: {real:?}, expected {model:?}")) }
}

impl Tally {
    /// Adds the counters of another case.
    pub(super) fn add(&mut self, other: Tally) {
        self.operations += other.operations;
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.repetitions += other.repetitions;
        self.restarts += other.restarts;
    }
}
