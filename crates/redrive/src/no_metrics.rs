//! Counters of a build without the feature `metrics`: they count nothing.

use std::time::Duration;

use redrive_store::{EventType, Finished};

#[derive(Debug, Default)]
pub(crate) struct Counters;

impl Counters {
    pub(crate) fn published(&self, _count: usize) {}
    pub(crate) fn duplicates(&self, _count: usize) {}
    pub(crate) fn recovered(&self, _count: usize) {}
    pub(crate) fn unmatched(&self, _count: usize) {}
    pub(crate) fn parked(&self, _count: usize) {}
    pub(crate) fn budget_deferred(&self, _count: usize) {}
    pub(crate) fn backlogged(&self, _count: usize) {}
    pub(crate) fn orphaned(&self, _count: usize) {}
    pub(crate) fn retried(&self, _event_type: &EventType) {}
    pub(crate) fn dispatched(&self, _latency: Duration) {}
    pub(crate) fn handled(&self, _took: Duration) {}
    pub(crate) fn finished(&self, _event_type: &EventType, _finished: Finished) {}
}

#[derive(Debug, Default)]
pub(crate) struct SubscriptionCounters;

impl SubscriptionCounters {
    pub(crate) fn done(&self, _count: usize) {}
    pub(crate) fn failed(&self, _is_dead: bool) {}
    pub(crate) fn parked(&self, _count: usize) {}
    pub(crate) fn backlogged(&self, _count: usize) {}
    pub(crate) fn handled(&self, _took: Duration) {}
}
