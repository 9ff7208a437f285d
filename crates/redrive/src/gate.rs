//! Whether stored events are handed out at once: only while the bus dispatches and is not held up.

use std::sync::{Arc, Mutex, PoisonError};

use redrive_store::{ClaimSink, Store};

/// One place decides, under one lock, so that two who change it at the same time cannot leave it half open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    dispatches: bool,
    is_paused: bool,
}

impl State {
    fn is_open(&self) -> bool {
        self.dispatches && !self.is_paused
    }
}

impl Gate {
    /// Dispatching has begun, or is over.
    pub(crate) fn dispatch(&self, dispatches: bool, store: &Arc<dyn Store>, sink: &ClaimSink) {
        self.change(store, sink, |state| state.dispatches = dispatches);
    }

    /// It is held up, or goes on.
    pub(crate) fn pause(&self, is_paused: bool, store: &Arc<dyn Store>, sink: &ClaimSink) {
        self.change(store, sink, |state| state.is_paused = is_paused);
    }

    /// Whether what is stored is handed out at once.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_open()
    }

    fn change(&self, store: &Arc<dyn Store>, sink: &ClaimSink, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        store.attach(state.is_open().then(|| sink.clone()));
    }
}
