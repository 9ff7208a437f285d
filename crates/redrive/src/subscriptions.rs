//! The registry of subscriptions, by name and by matching event type.

use std::collections::HashMap;
use std::sync::Arc;

use redrive_store::{EventType, SubscriptionName};

use crate::subscription::Subscription;

/// All subscriptions of a bus, with an index by name: there may be thousands of webhook endpoints.
#[derive(Clone, Default)]
pub(crate) struct Subscriptions {
    /// In order of registration, which is the order of handling.
    list: Vec<Arc<Subscription>>,
    /// The position of each in the list.
    positions: HashMap<SubscriptionName, usize>,
}

impl Subscriptions {
    /// All subscriptions, in order of registration.
    pub(crate) fn all(&self) -> &[Arc<Subscription>] {
        &self.list
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Subscription>> {
        self.positions.get(name).map(|position| &self.list[*position])
    }

    /// The subscriptions that match an event type, in order of registration.
    pub(crate) fn matching(&self, event_type: &EventType) -> Vec<Arc<Subscription>> {
        let is_match = |one: &&Arc<Subscription>| one.patterns.matches(event_type.as_str());
        self.list.iter().filter(is_match).cloned().collect()
    }

    /// Adds a subscription; it takes the position of the one with the same name, if there is one.
    pub(crate) fn put(&mut self, subscription: Arc<Subscription>) {
        match self.positions.get(subscription.name.as_str()) {
            Some(position) => self.list[*position] = subscription,
            None => {
                self.positions.insert(subscription.name.clone(), self.list.len());
                self.list.push(subscription);
            }
        }
    }

    /// Removes a subscription by its id.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<Subscription>> {
        let position = self.list.iter().position(|subscription| subscription.id == id)?;
        let removed = self.list.remove(position);
        self.positions.remove(removed.name.as_str());
        self.positions.values_mut().filter(|other| **other > position).for_each(|other| *other -= 1);
        Some(removed)
    }
}
