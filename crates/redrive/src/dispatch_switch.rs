//! Switches claiming on and off: on while the bus dispatches and is not paused.

use std::sync::{Arc, Mutex, PoisonError};

use redrive_store::{ClaimSink, Store};

/// Attaches the dispatcher's [`ClaimSink`] to the store and detaches it. One lock for both conditions, so that of two concurrent changes
/// the later one decides.
#[derive(Debug, Default)]
pub(crate) struct DispatchSwitch {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    dispatches: bool,
    is_paused: bool,
}

impl State {
    fn is_on(&self) -> bool {
        self.dispatches && !self.is_paused
    }
}

impl DispatchSwitch {
    /// Records that dispatching begins or ends.
    pub(crate) fn dispatch(&self, dispatches: bool, store: &Arc<dyn Store>, sink: &ClaimSink) {
        self.change(store, sink, |state| state.dispatches = dispatches);
    }

    /// Pauses or resumes.
    pub(crate) fn pause(&self, is_paused: bool, store: &Arc<dyn Store>, sink: &ClaimSink) {
        self.change(store, sink, |state| state.is_paused = is_paused);
    }

    /// Whether the store claims for this bus, due events in the transaction that stores them.
    pub(crate) fn is_on(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_on()
    }

    fn change(&self, store: &Arc<dyn Store>, sink: &ClaimSink, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        store.attach(state.is_on().then(|| sink.clone()));
    }
}
