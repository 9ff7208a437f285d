//! The reference model of the random walk: rows of events and deliveries with their states.

use std::collections::BTreeMap;

use crate::event::{EventStatus, NewEvent};
use crate::lease::LeaseToken;

/// A small deterministic generator (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    pub(super) fn millis(&mut self, limit: u64) -> i64 {
        i64::try_from(self.below(limit)).unwrap()
    }

    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum State {
    Suspect,
    Pending,
    Running,
    Waiting,
    /// Of a delivery: leased by a consumer.
    Leased,
    Done,
    Dead,
    /// Of an event: its deliveries are open.
    Delivering,
    /// Of an event: its deliveries were redriven, and none was claimed since.
    Redriven,
}

impl State {
    pub(super) fn is_open(self) -> bool {
        !matches!(self, State::Done | State::Dead)
    }

    pub(super) fn shown(self) -> EventStatus {
        match self {
            State::Suspect | State::Pending | State::Redriven => EventStatus::Pending,
            State::Running | State::Waiting | State::Leased | State::Delivering => EventStatus::Processing,
            State::Done => EventStatus::Done,
            State::Dead => EventStatus::Dlq,
        }
    }
}

/// An event, or a delivery of it to one subscription.
#[derive(Debug)]
pub(super) struct ModelRow {
    pub(super) state: State,
    pub(super) due: i64,
    pub(super) retry_count: u32,
    pub(super) errors: Vec<String>,
    pub(super) crashes: u32,
    /// The last lease.
    pub(super) lease: Option<LeaseToken>,
}

impl ModelRow {
    pub(super) fn new(state: State, due: i64) -> Self {
        ModelRow { state, due, retry_count: 0, errors: Vec::new(), crashes: 0, lease: None }
    }

    pub(super) fn is_due(&self, now: i64) -> bool {
        matches!(self.state, State::Pending | State::Waiting | State::Leased) && self.due <= now
    }
}

#[derive(Debug)]
pub(super) struct Modelled {
    pub(super) new: NewEvent,
    pub(super) created: i64,
    /// When the event row was last changed.
    pub(super) updated: i64,
    pub(super) whole: ModelRow,
    pub(super) deliveries: BTreeMap<String, ModelRow>,
    /// The failed attempts since the last redrive: the subscription of a delivery or `None`, and the error.
    pub(super) failed: Vec<(Option<String>, String)>,
    /// The dead letters: the subscription, or `None` for the whole event.
    pub(super) letters: Vec<Option<String>>,
}

impl Modelled {
    pub(super) fn rows(&self) -> impl Iterator<Item = &ModelRow> {
        std::iter::once(&self.whole).chain(self.deliveries.values())
    }

    pub(super) fn row(&mut self, subscription: Option<&str>) -> &mut ModelRow {
        match subscription {
            None => &mut self.whole,
            Some(name) => self.deliveries.get_mut(name).unwrap(),
        }
    }

    /// Starts over, except for the attempts of deliveries that stay open.
    pub(super) fn forget_failures(&mut self) {
        let is_open = |by: &String| self.deliveries[by].state.is_open();
        self.failed.retain(|(by, _)| by.as_ref().is_some_and(is_open));
    }

    pub(super) fn owes(&self) -> usize {
        self.deliveries.values().filter(|row| row.state.is_open()).count()
    }
}
