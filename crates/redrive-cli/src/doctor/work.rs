//! Checks the work in a database: its dispatchers, abandoned, overdue and orphaned deliveries, and dead letters.

use std::time::Duration;

use super::finding::Finding;
use crate::format;

/// Time after its due time at which work counts as overdue.
pub(super) const OVERDUE: Duration = Duration::from_secs(60);

/// Work in a database, and the processes that dispatch it.
#[derive(Debug)]
pub(super) struct Work {
    /// Name of the check of the dispatchers: a file has one, a server many.
    pub(super) check: &'static str,
    /// Processes that dispatch at the moment.
    pub(super) dispatchers: Vec<String>,
    /// Events and deliveries in flight.
    pub(super) running: u64,
    /// Events and deliveries in flight whose process has ended.
    pub(super) abandoned: u64,
    /// Events and deliveries that have been due for longer than [`OVERDUE`].
    pub(super) overdue: u64,
    /// Advice for dispatchers that do not keep up.
    pub(super) if_slow: &'static str,
    /// Subscriptions that are not on record, with the number of their open deliveries.
    pub(super) orphans: Vec<(String, u64)>,
    /// Events in the dead-letter queue.
    pub(super) dead: u64,
}

impl Work {
    /// `flag` names the database in a command that the user may copy.
    pub(super) fn findings(&self, flag: &str) -> [Finding; 5] {
        [self.dispatchers(), self.in_flight(), self.waiting(), self.deliveries(), self.dead(flag)]
    }

    fn dispatchers(&self) -> Finding {
        match self.dispatchers.as_slice() {
            [] => Finding::ok(self.check, "no process dispatches at the moment"),
            names => Finding::ok(self.check, names.join(", ")),
        }
    }

    fn in_flight(&self) -> Finding {
        let events = |number| format::counted(number, "event");
        match (self.abandoned, self.dispatchers.is_empty()) {
            (0, true) => Finding::ok("running", "no work was interrupted"),
            (0, false) => Finding::ok("running", format!("{} being handled", events(self.running))),
            (abandoned, no_dispatcher) => {
                let advice = if no_dispatcher {
                    "start the program that handles them: it recovers them and charges an attempt"
                } else {
                    "a live process takes them over within a third of its lease"
                };
                let found = format!("{} claimed by a process that has ended", events(abandoned));
                Finding::warn("running", found, advice)
            }
        }
    }

    fn waiting(&self) -> Finding {
        if self.overdue == 0 {
            return Finding::ok("waiting", "nothing is overdue");
        }
        let found = format!("{} due for more than a minute", format::counted(self.overdue, "event"));
        let start = "start the program that handles them";
        Finding::warn("waiting", found, if self.dispatchers.is_empty() { start } else { self.if_slow })
    }

    fn deliveries(&self) -> Finding {
        if self.orphans.is_empty() {
            return Finding::ok("deliveries", "every open delivery has its subscription");
        }
        let count = |(name, number): &(String, u64)| format!("{} for {name:?}", format::count(*number));
        let list: Vec<String> = self.orphans.iter().map(count).collect();
        Finding::warn(
            "deliveries",
            format!("{}, which is not a subscription on record", list.join(", ")),
            "they wait until a program subscribes under that name again",
        )
    }

    fn dead(&self, flag: &str) -> Finding {
        match self.dead {
            0 => Finding::ok("dead letters", "none"),
            dead => Finding::warn(
                "dead letters",
                format::counted(dead, "event"),
                format!("group them by error: redrive dlq groups{flag}"),
            ),
        }
    }
}
