//! Checks the processes that dispatch from a database, and the work in flight.

use super::finding::Finding;
use crate::format;

/// Processes that dispatch from a database, and the work in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Name of the check of the dispatchers: a file has one, a server many.
    pub(super) check: &'static str,
    /// Processes that dispatch at the moment.
    pub(super) dispatchers: Vec<String>,
    /// Events and deliveries in flight.
    pub(super) running: u64,
    /// Events and deliveries in flight whose process has ended.
    pub(super) abandoned: u64,
}

impl InFlight {
    pub(super) fn findings(&self) -> [Finding; 2] {
        [self.dispatchers(), self.in_flight()]
    }

    fn dispatchers(&self) -> Finding {
        match self.dispatchers.as_slice() {
            [] => Finding::ok(self.check, "no process dispatches at the moment"),
            names => Finding::ok(self.check, names.join(", ")),
        }
    }

    fn in_flight(&self) -> Finding {
        let events = |number| format::counted(number, "event");
        let abandoned = || format!("{} claimed by a process that has ended", events(self.abandoned));
        match (self.abandoned, self.dispatchers.is_empty()) {
            (0, true) => Finding::ok("running", "no work was interrupted"),
            (0, false) => Finding::ok("running", format!("{} being handled", events(self.running))),
            (_, true) => {
                let advice = "start the program that handles them: it recovers them and charges an attempt";
                Finding::act("running", abandoned(), advice)
            }
            (_, false) => {
                let advice = "a live process takes them over within a third of its lease";
                Finding::warn("running", abandoned(), advice)
            }
        }
    }
}
