//! Who has subscribed.

use std::collections::HashMap;
use std::sync::Arc;

use redrive_store::{EventType, SubscriptionName};

use crate::subscription::Subscription;

/// All subscriptions of a bus, found by name without looking at each: there may be thousands of endpoints.
#[derive(Clone, Default)]
pub(crate) struct Roster {
    /// In order of subscribing, which is the order of handling.
    list: Vec<Arc<Subscription>>,
    /// Where each stands in the list.
    places: HashMap<SubscriptionName, usize>,
}

impl Roster {
    /// In order of subscribing.
    pub(crate) fn all(&self) -> &[Arc<Subscription>] {
        &self.list
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Subscription>> {
        self.list.iter()
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Subscription>> {
        self.places.get(name).map(|place| &self.list[*place])
    }

    /// Those that want this type, in order of subscribing.
    pub(crate) fn matching(&self, event_type: &EventType) -> Vec<Arc<Subscription>> {
        let wants = |one: &&Arc<Subscription>| one.patterns.matches(event_type.as_str());
        self.list.iter().filter(wants).cloned().collect()
    }

    /// Takes it in, in the place of the one that had its name. That one is returned.
    pub(crate) fn put(&mut self, subscription: Arc<Subscription>) -> Option<Arc<Subscription>> {
        match self.places.get(subscription.name.as_str()) {
            Some(place) => Some(std::mem::replace(&mut self.list[*place], subscription)),
            None => {
                self.places.insert(subscription.name.clone(), self.list.len());
                self.list.push(subscription);
                None
            }
        }
    }

    /// By the id, which is not the name.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<Subscription>> {
        let place = self.list.iter().position(|subscription| subscription.id == id)?;
        let removed = self.list.remove(place);
        self.places.remove(removed.name.as_str());
        self.places.values_mut().filter(|other| **other > place).for_each(|other| *other -= 1);
        Some(removed)
    }
}
