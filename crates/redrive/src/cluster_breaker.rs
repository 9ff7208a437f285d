//! Shared circuit breaker of several processes: one node's view of it. A node is one process.
//!
//! Every node reports its call counts, and all nodes agree on one [`CircuitState`] in the store. A node changes the state by
//! compare-and-set on its generation. This module is plain state: the caller passes in the time and the other nodes' reports.
//!
//! A node's own breaker works beside the shared one, so a node that fails alone is stopped by its own breaker.

use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::breaker::BreakerConfig;
use redrive_retry::internal::{CallCounts, CallWindow};
use redrive_store::CircuitState;

/// Delay before a caller that was refused because of a running probe asks again: a probe usually ends long before its lease.
pub(crate) const PROBE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Report interval while the circuit is not closed or too many calls fail: another node's probe may have closed it, and two
/// simultaneous reports do not see each other.
const UNHEALTHY_REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Longest time between two reports of a node.
const MAX_REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// The attempt at an event whose outcome is counted. An event counts once, with its latest outcome, however often it is retried.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempted {
    /// The event's id.
    pub(crate) event: u128,
    /// When the first attempt began; `None` if this is the first one.
    pub(crate) first_at: Option<Timestamp>,
}

/// One node's view of a shared circuit.
#[derive(Clone, Debug)]
pub(crate) struct ClusterBreaker {
    pub(crate) config: BreakerConfig,
    /// Last known state of the circuit. Outcomes of calls from earlier generations are ignored.
    pub(crate) known: CircuitState,
    /// Calls of the current generation only: counts from before a state change say nothing about the present.
    window: CallWindow,
    /// The last report and its time.
    reported: Option<(CallCounts, Timestamp)>,
    /// End of this node's pending request for the probe slot.
    asking_until: Option<Timestamp>,
}

/// Answer of [`ClusterBreaker::admit`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterAdmission {
    /// The call may be made.
    Go,
    /// The call is the probe if the store accepts this change. Pass the store's answer to [`ClusterBreaker::changed`].
    Probe(CircuitState),
    /// The call must not be made before this instant.
    Refused(Timestamp),
}

impl ClusterBreaker {
    /// Creates a closed circuit; reports of other nodes may open it.
    pub(crate) fn new(config: BreakerConfig) -> Self {
        let window = CallWindow::new(config.window());
        ClusterBreaker { config, known: CircuitState::default(), window, reported: None, asking_until: None }
    }

    /// Decides whether a call may be made now.
    pub(crate) fn admit(&mut self, now: Timestamp) -> ClusterAdmission {
        let Some(until) = self.known.until else { return ClusterAdmission::Go };
        if now < until {
            // A clock step never keeps the circuit open for longer than the maximum.
            return ClusterAdmission::Refused(until.min(now + self.config.max_open_for()));
        }
        let taken_until = self.known.probe_until.max(self.asking_until);
        if let Some(taken_until) = taken_until.filter(|end| now < *end) {
            return ClusterAdmission::Refused(taken_until.min(now + PROBE_RETRY_DELAY));
        }
        let probe_until = now + self.config.probe_lease();
        self.asking_until = Some(probe_until);
        ClusterAdmission::Probe(CircuitState { probe_until: Some(probe_until), ..self.known })
    }

    /// Records the store's answer to a change: the generation that it created, or `None` if another node was first. Returns
    /// whether this node's change took effect.
    pub(crate) fn changed(&mut self, change: CircuitState, made: Option<i64>) -> bool {
        self.asking_until = None;
        match made {
            Some(generation) if self.known.generation == change.generation => {
                self.enter(CircuitState { generation, ..change });
                true
            }
            // A report has brought the new state already. A generation is created once, so this change created it.
            Some(generation) => self.known.generation == generation,
            None => false,
        }
    }

    /// Counts the outcome of an attempt that was admitted in this generation.
    ///
    /// A retry that fails after a first attempt within the window counts here only if this node has counted the event: otherwise the
    /// node that made that attempt has. So an event whose attempts go from node to node is not counted as one failure of each.
    pub(crate) fn record(&mut self, generation: i64, attempted: Attempted, succeeded: bool, now: Timestamp) {
        if generation != self.known.generation || self.known.until.is_some() {
            return;
        }
        let Attempted { event, first_at } = attempted;
        let is_recent_retry = first_at.is_some_and(|at| now.since(at) < self.config.window());
        let has_remote_count = is_recent_retry && !self.window.has_counted(event);
        if succeeded || !has_remote_count {
            self.window.record_event(event, succeeded, now);
        }
    }

    /// Notes that an event whose attempt succeeded at `counted_at` comes again, so that its next outcome replaces that one.
    pub(crate) fn expect_again(&mut self, event: u128, counted_at: Timestamp, now: Timestamp) {
        self.window.expect_again(event, counted_at, now);
    }

    /// Returns the state change that the outcome of a probe of this generation requests.
    pub(crate) fn probe_ended(
        &self,
        generation: i64,
        succeeded: bool,
        now: Timestamp,
    ) -> Option<CircuitState> {
        if generation != self.known.generation {
            return None;
        }
        Some(if succeeded {
            CircuitState { generation, ..CircuitState::default() }
        } else {
            self.opened(now)
        })
    }

    /// Returns the counts to report, if a report is due: the counts have changed, the circuit is not closed, too many calls of
    /// this node fail, or the last report is old.
    pub(crate) fn report(&mut self, now: Timestamp) -> Option<CallCounts> {
        let counts = self.window.counts(now);
        // If all nodes together exceed the failure ratio, at least one of them does so by itself and keeps reporting.
        let is_unhealthy =
            self.known.until.is_some() || counts.failure_share_exceeds(self.config.failure_ratio());
        let is_due = match self.reported {
            Some((reported, at)) => {
                let age = now.since(at);
                reported != counts
                    || age >= (self.config.window() / 3).min(MAX_REPORT_INTERVAL)
                    || (is_unhealthy && age >= UNHEALTHY_REPORT_INTERVAL)
            }
            None => true,
        };
        if is_due {
            self.reported = Some((counts, now));
        }
        is_due.then_some(counts)
    }

    /// Notes that the last report failed, so the next one is due at once.
    pub(crate) fn report_failed(&mut self) {
        self.reported = None;
    }

    /// Applies the answer to a report: the circuit's state and the counts of every other live node in this state, zeros
    /// included. `asked_under` is the generation at the time of the report; an outdated answer is ignored. Returns whether the
    /// state is new, and the change to request.
    pub(crate) fn apply(
        &mut self,
        asked_under: i64,
        seen: CircuitState,
        others: &[CallCounts],
        now: Timestamp,
    ) -> (bool, Option<CircuitState>) {
        if asked_under != self.known.generation {
            return (false, None);
        }
        if seen.generation != self.known.generation {
            self.enter(seen);
            return (true, None);
        }
        let is_over =
            self.known.until.is_none() && should_open(&self.config, self.window.counts(now), others);
        (false, is_over.then(|| self.opened(now)))
    }

    fn enter(&mut self, state: CircuitState) {
        self.known = state;
        self.window = CallWindow::new(self.config.window());
        self.reported = None;
    }

    fn opened(&self, now: Timestamp) -> CircuitState {
        let until = now + self.config.open_duration(self.known.openings);
        let openings = self.known.openings.saturating_add(1);
        CircuitState { generation: self.known.generation, until: Some(until), probe_until: None, openings }
    }
}

/// Whether the counts of all nodes open the shared circuit. The sum must exceed the failure ratio, and must still exceed it
/// with any one node left out and half the minimum sample remaining. A single node can therefore never open the circuit for
/// others; it can if it is the only node.
fn should_open(config: &BreakerConfig, own: CallCounts, others: &[CallCounts]) -> bool {
    let exceeds = |counts: CallCounts, min_samples: u32| {
        counts.total() >= min_samples && counts.failure_share_exceeds(config.failure_ratio())
    };
    let all = others.iter().fold(own, |sum, counts| sum.plus(*counts));
    if !exceeds(all, config.min_samples()) || others.is_empty() {
        return exceeds(all, config.min_samples());
    }
    let half = config.min_samples().div_ceil(2);
    others.iter().chain([&own]).all(|one| exceeds(all.minus(*one), half))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T0: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn at(secs: u64) -> Timestamp {
        T0 + Duration::from_secs(secs)
    }

    fn counts(succeeded: u32, failed: u32) -> CallCounts {
        CallCounts { succeeded, failed }
    }

    fn opens(own: (u32, u32), others: &[(u32, u32)]) -> bool {
        let others: Vec<_> = others.iter().map(|(s, f)| counts(*s, *f)).collect();
        should_open(&BreakerConfig::default(), counts(own.0, own.1), &others)
    }

    #[test]
    fn one_failing_node_never_opens_the_shared_circuit_and_two_do() {
        assert!(!opens((0, 1000), &[(0, 0)]), "the other node has no calls");
        assert!(!opens((0, 1000), &[(3, 0), (2, 0)]), "the other nodes succeed");
        assert!(!opens((0, 1000), &[(0, 1)]), "one failure on another node is not enough");
        assert!(!opens((2, 0), &[(0, 1000), (2, 0)]), "from every node's point of view");
        assert!(opens((0, 2), &[(0, 2)]));
        assert!(opens((0, 1000), &[(1, 2)]));
        assert!(opens((0, 1), &[(0, 1), (0, 1), (0, 1)]), "little traffic on many nodes adds up");
        assert!(!opens((0, 1), &[(0, 1), (0, 1)]), "but not below the minimum sample");
    }

    #[test]
    fn the_only_node_opens_the_circuit() {
        assert!(opens((0, 4), &[]));
        assert!(!opens((0, 3), &[]));
        assert!(!opens((2, 2), &[]));
    }

    proptest! {
        /// If all other nodes together succeed, the counts of one node never open the circuit.
        #[test]
        fn one_node_alone_never_opens_the_circuit(
            bad in (0u32..2000, 0u32..2000),
            others in proptest::collection::vec((1u32..50, 0u32..50), 1..6),
            place in 0usize..6,
        ) {
            let others: Vec<_> = others.into_iter().map(|(s, f)| (s, f.min(s))).collect();
            prop_assert!(!opens(bad, &others));
            let mut rest = others.clone();
            let own = rest.remove(place % others.len());
            rest.push(bad);
            prop_assert!(!opens(own, &rest), "from another node's point of view");
        }
    }

    /// The shared state as a database keeps it.
    #[derive(Default)]
    struct Table(CircuitState);

    impl Table {
        fn change(&mut self, change: CircuitState) -> Option<i64> {
            (change.generation == self.0.generation).then(|| {
                self.0 = CircuitState { generation: change.generation + 1, ..change };
                self.0.generation
            })
        }

        fn answer(&mut self, node: &mut ClusterBreaker, others: &[CallCounts], now: Timestamp) {
            let (_, change) = node.apply(node.known.generation, self.0, others, now);
            if let Some(change) = change {
                let made = self.change(change);
                node.changed(change, made);
            }
        }
    }

    fn node() -> ClusterBreaker {
        ClusterBreaker::new(BreakerConfig::default())
    }

    fn first(event: u128) -> Attempted {
        Attempted { event, first_at: None }
    }

    #[test]
    fn one_event_that_fails_on_every_node_counts_once() {
        let mut nodes = [node(), node(), node(), node()];
        for (attempt, at_second) in [0, 1, 3, 7].into_iter().enumerate() {
            let first_at = (attempt > 0).then_some(T0);
            nodes[attempt].record(0, Attempted { event: 1, first_at }, false, at(at_second));
        }
        let all = nodes.iter_mut().map(|node| node.report(at(7)).unwrap()).reduce(CallCounts::plus);
        assert_eq!(all, Some(counts(0, 1)));
        let [_, mut two, ..] = nodes;
        two.record(0, Attempted { event: 1, first_at: Some(T0) }, false, at(70));
        assert_eq!(two.report(at(70)), Some(counts(0, 1)), "the first attempt has left the window");
        two.record(0, Attempted { event: 1, first_at: Some(T0) }, true, at(71));
        assert_eq!(two.report(at(71)), Some(counts(1, 0)), "the latest outcome");
    }

    fn open() -> (Table, ClusterBreaker, ClusterBreaker) {
        let (mut table, mut one, mut two) = (Table::default(), node(), node());
        for event in 0..2 {
            one.record(0, first(event), false, T0);
            two.record(0, first(event + 10), false, T0);
        }
        let counted = two.report(T0).unwrap();
        table.answer(&mut one, &[counted], T0);
        assert_eq!(table.0.until, Some(at(30)));
        assert_eq!(two.admit(T0), ClusterAdmission::Go, "the second node has not seen the change yet");
        table.answer(&mut two, &[], T0);
        (table, one, two)
    }

    #[test]
    fn an_open_circuit_refuses_on_every_node_and_admits_one_probe() {
        let (mut table, mut one, mut two) = open();
        for node in [&mut one, &mut two] {
            assert_eq!(node.admit(at(29)), ClusterAdmission::Refused(at(30)));
        }
        let (ClusterAdmission::Probe(first), ClusterAdmission::Probe(second)) =
            (one.admit(at(30)), two.admit(at(30)))
        else {
            panic!("both nodes request the probe slot")
        };
        assert!(matches!(one.admit(at(30)), ClusterAdmission::Refused(_)), "one request at a time");
        let made = table.change(first);
        assert!(one.changed(first, made));
        let made = table.change(second);
        assert!(made.is_none() && !two.changed(second, made));
        table.answer(&mut two, &[], at(30));
        assert_eq!(two.admit(at(30)), ClusterAdmission::Refused(at(31)), "ask again soon");

        let closed = one.probe_ended(one.known.generation, true, at(31)).unwrap();
        let made = table.change(closed);
        one.changed(closed, made);
        table.answer(&mut two, &[], at(31));
        assert_eq!((one.admit(at(31)), two.admit(at(31))), (ClusterAdmission::Go, ClusterAdmission::Go));
        assert_eq!(one.report(at(31)), Some(counts(0, 0)), "the window starts empty");
    }

    #[test]
    fn a_lost_probe_frees_its_slot_after_the_lease() {
        let (mut table, mut one, mut two) = open();
        let ClusterAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        one.changed(probe, made);
        let dead = one.known.generation;
        table.answer(&mut two, &[], at(30));
        let ClusterAdmission::Probe(probe) = two.admit(at(60)) else { panic!("the lease is over") };
        let made = table.change(probe);
        two.changed(probe, made);
        table.answer(&mut one, &[], at(60));
        assert_eq!(one.probe_ended(dead, true, at(61)), None, "late");
    }

    #[test]
    fn a_failed_probe_reopens_the_circuit() {
        let (mut table, mut one, _) = open();
        let ClusterAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        one.changed(probe, made);
        let failed = one.probe_ended(one.known.generation, false, at(31)).unwrap();
        assert_eq!((failed.until, failed.probe_until, failed.openings), (Some(at(61)), None, 2));
    }

    #[test]
    fn an_outdated_answer_is_ignored() {
        let (mut table, mut one, _) = open();
        let (asked_under, seen) = (one.known.generation, table.0);
        let ClusterAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        one.changed(probe, made);
        assert_eq!(one.apply(asked_under, seen, &[], at(30)), (false, None));
        assert_eq!(one.known, table.0);
    }

    #[test]
    fn a_change_reported_before_its_answer_counts_as_own() {
        let (mut table, mut one, mut two) = open();
        let ClusterAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        table.answer(&mut one, &[], at(30));
        assert!(one.changed(probe, made));
        assert!(!two.changed(probe, None));
    }

    #[test]
    fn reports_are_due_on_changed_counts_and_at_intervals() {
        let mut node = node();
        assert_eq!(node.report(T0), Some(counts(0, 0)));
        assert_eq!(node.report(at(1)), None);
        node.record(0, first(1), true, at(2));
        assert_eq!(node.report(at(2)), Some(counts(1, 0)));
        assert_eq!(node.report(at(3)), None);
        assert_eq!(node.report(at(22)), Some(counts(1, 0)), "a third of the window later");
        assert_eq!(node.report(at(63)), Some(counts(0, 0)), "the call has left the window");
        node.record(0, first(2), false, at(64));
        assert_eq!(node.report(at(64)), Some(counts(0, 1)));
        assert_eq!(node.report(at(65)), Some(counts(0, 1)), "two simultaneous reports do not see each other");
    }
}
