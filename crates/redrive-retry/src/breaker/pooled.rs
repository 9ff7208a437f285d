//! One node's part in a circuit that several nodes have in common.
//!
//! The nodes tell each other their counts and agree on one state, which lies somewhere that all of them can reach and that can
//! be changed only by who knows its current generation. What is here is plain state with the time and everything that the
//! others have said passed in: no clock, no lock, no network.
//!
//! It stands beside the node's own [`Breaker`](super::Breaker), not in its place: a node that fails while others do not is
//! stopped by its own.

use std::time::Duration;

use super::LOOK_AGAIN;
use super::config::BreakerConfig;
use super::window::Window;
use crate::timestamp::Timestamp;

pub use super::window::Counts as CallCounts;

/// While it is not well, it is looked at this often: somebody else's probe may have closed it; and what two processes tell at the
/// same moment neither of them sees in its answer.
const LOOK_WHILE_UNWELL: Duration = Duration::from_millis(250);

/// The longest time after which a node says that it is there.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// How a common circuit stands. One that nobody has ever changed is the default.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitState {
    /// Which state this is: another one after every change. In a change that is asked for: the one that it is a change of.
    pub generation: i64,
    /// When a probe may go; `None` if the circuit is closed.
    pub until: Option<Timestamp>,
    /// Until when a probe that is under way has its slot.
    pub probe_until: Option<Timestamp>,
    /// How often it has opened without closing in between.
    pub openings: u32,
}

/// One node's view of a common circuit.
#[derive(Clone, Debug)]
pub struct PooledBreaker {
    config: BreakerConfig,
    known: CircuitState,
    /// Of this generation only: what was counted before the circuit opened or closed says nothing about now.
    window: Window,
    /// What was reported last, and when.
    told: Option<(CallCounts, Timestamp)>,
    /// Until when this node is busy asking for the probe's slot.
    asking_until: Option<Timestamp>,
}

/// May a call be made?
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PooledAdmission {
    /// Yes.
    Go,
    /// If this change takes effect; the call is the probe then. Say so with [`PooledBreaker::asked`].
    Probe(CircuitState),
    /// Not before this instant.
    Refused(Timestamp),
}

impl PooledBreaker {
    /// As long as nothing is known of the others, it is closed.
    pub fn new(config: BreakerConfig) -> Self {
        let window = Window::new(config.window);
        PooledBreaker { config, known: CircuitState::default(), window, told: None, asking_until: None }
    }

    /// Which state is known. What was seen of an earlier one is to be forgotten.
    pub fn generation(&self) -> i64 {
        self.known.generation
    }

    /// How far back calls count.
    pub fn window(&self) -> Duration {
        self.config.window
    }

    /// How the circuit stands, as far as is known.
    pub fn state(&self) -> CircuitState {
        self.known
    }

    /// May a call be made now?
    pub fn admit(&mut self, now: Timestamp) -> PooledAdmission {
        let Some(until) = self.known.until else { return PooledAdmission::Go };
        if now < until {
            // Never for longer than it could have been meant to be, whatever happens to a clock.
            return PooledAdmission::Refused(until.min(now + self.config.max_open_for));
        }
        let taken_until = self.known.probe_until.max(self.asking_until);
        if let Some(taken_until) = taken_until.filter(|end| now < *end) {
            return PooledAdmission::Refused(taken_until.min(now + LOOK_AGAIN));
        }
        let probe_until = now + self.config.probe_lease;
        self.asking_until = Some(probe_until);
        PooledAdmission::Probe(CircuitState { probe_until: Some(probe_until), ..self.known })
    }

    /// What became of a change: the generation that it has made, or nothing if somebody else was first. Says whether the
    /// state is a new one.
    pub fn asked(&mut self, change: CircuitState, made: Option<i64>) -> bool {
        self.asking_until = None;
        match made {
            Some(generation) if self.known.generation == change.generation => {
                self.begin(CircuitState { generation, ..change });
                true
            }
            // Heard of already, by way of a report: a generation is made once, so it was this change.
            Some(generation) => self.known.generation == generation,
            None => false,
        }
    }

    /// Counts a call that was admitted under this generation.
    pub fn record(&mut self, generation: i64, succeeded: bool, now: Timestamp) {
        if generation == self.known.generation && self.known.until.is_none() {
            self.window.record(succeeded, now);
        }
    }

    /// What is to be changed after a probe of this generation.
    pub fn probe_ended(&self, generation: i64, succeeded: bool, now: Timestamp) -> Option<CircuitState> {
        if generation != self.known.generation {
            return None;
        }
        Some(if succeeded {
            CircuitState { generation, ..CircuitState::default() }
        } else {
            self.opened(now)
        })
    }

    /// What to tell the others now, if anything: when the counts have changed, while the circuit is not closed or too many calls of this node fail, and now and then
    /// to say that this node is there.
    pub fn report(&mut self, now: Timestamp) -> Option<CallCounts> {
        let counts = self.window.counts(now);
        // If all nodes together fail too much, at least one of them does so by itself, and goes on looking.
        let is_unwell = self.known.until.is_some() || counts.failure_share_exceeds(self.config.failure_ratio);
        let is_due = match self.told {
            Some((told, at)) => {
                let silence = now.since(at);
                told != counts
                    || silence >= (self.config.window / 3).min(LONGEST_SILENCE)
                    || (is_unwell && silence >= LOOK_WHILE_UNWELL)
            }
            None => true,
        };
        if is_due {
            self.told = Some((counts, now));
        }
        is_due.then_some(counts)
    }

    /// Nobody has heard the last report.
    pub fn unheard(&mut self) {
        self.told = None;
    }

    /// Takes in how the circuit stands and what every other node that is there has counted in this state, zeros included.
    /// `asked_under` is the generation at the time of asking: an answer that something has overtaken is passed over. Says
    /// whether the state is a new one, and how it is to be changed.
    pub fn learn(
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
            self.begin(seen);
            return (true, None);
        }
        let is_enough =
            self.known.until.is_none() && are_enough(&self.config, self.window.counts(now), others);
        (false, is_enough.then(|| self.opened(now)))
    }

    fn begin(&mut self, state: CircuitState) {
        self.known = state;
        self.window = Window::new(self.config.window);
        self.told = None;
    }

    fn opened(&self, now: Timestamp) -> CircuitState {
        let until = now + self.config.open_length(self.known.openings);
        let openings = self.known.openings.saturating_add(1);
        CircuitState { generation: self.known.generation, until: Some(until), probe_until: None, openings }
    }
}

/// Whether the counts of all nodes open the circuit for all of them. They must do so together, and still do so when any one node is
/// left out, with half of the minimum sample left: so one node alone never can, however much it fails. The only node there is
/// can.
fn are_enough(config: &BreakerConfig, own: CallCounts, others: &[CallCounts]) -> bool {
    let speaks = |counts: CallCounts, least: u32| {
        counts.total() >= least && counts.failure_share_exceeds(config.failure_ratio)
    };
    let all = others.iter().fold(own, |sum, counts| sum.plus(*counts));
    if !speaks(all, config.min_samples) || others.is_empty() {
        return speaks(all, config.min_samples);
    }
    let half = config.min_samples.div_ceil(2);
    others.iter().chain([&own]).all(|one| speaks(all.minus(*one), half))
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

    fn is_enough(own: (u32, u32), others: &[(u32, u32)]) -> bool {
        let others: Vec<_> = others.iter().map(|(s, f)| counts(*s, *f)).collect();
        are_enough(&BreakerConfig::default(), counts(own.0, own.1), &others)
    }

    #[test]
    fn one_bad_node_never_opens_it_for_all_and_two_do() {
        assert!(!is_enough((0, 1000), &[(0, 0)]), "the other has nothing to say");
        assert!(!is_enough((0, 1000), &[(3, 0), (2, 0)]), "the others are well");
        assert!(!is_enough((0, 1000), &[(0, 1)]), "one failure elsewhere is an accident");
        assert!(!is_enough((2, 0), &[(0, 1000), (2, 0)]), "whoever looks");
        assert!(is_enough((0, 2), &[(0, 2)]));
        assert!(is_enough((0, 1000), &[(1, 2)]));
        assert!(is_enough((0, 1), &[(0, 1), (0, 1), (0, 1)]), "little traffic on many nodes adds up");
        assert!(!is_enough((0, 1), &[(0, 1), (0, 1)]), "but not below the minimum sample");
    }

    #[test]
    fn the_only_node_there_is_opens_it() {
        assert!(is_enough((0, 4), &[]));
        assert!(!is_enough((0, 3), &[]));
        assert!(!is_enough((2, 2), &[]));
    }

    proptest! {
        /// Whatever one node counts: if all others together are well, it opens nothing.
        #[test]
        fn one_node_alone_decides_nothing(
            bad in (0u32..2000, 0u32..2000),
            others in proptest::collection::vec((1u32..50, 0u32..50), 1..6),
            place in 0usize..6,
        ) {
            let others: Vec<_> = others.into_iter().map(|(s, f)| (s, f.min(s))).collect();
            prop_assert!(!is_enough(bad, &others));
            let mut rest = others.clone();
            let own = rest.remove(place % others.len());
            rest.push(bad);
            prop_assert!(!is_enough(own, &rest), "the same from another place");
        }
    }

    /// A state that all agree on, as a database would keep it.
    #[derive(Default)]
    struct Table(CircuitState);

    impl Table {
        fn change(&mut self, change: CircuitState) -> Option<i64> {
            (change.generation == self.0.generation).then(|| {
                self.0 = CircuitState { generation: change.generation + 1, ..change };
                self.0.generation
            })
        }

        fn tell(&mut self, node: &mut PooledBreaker, others: &[CallCounts], now: Timestamp) {
            let (_, change) = node.learn(node.generation(), self.0, others, now);
            if let Some(change) = change {
                let made = self.change(change);
                node.asked(change, made);
            }
        }
    }

    fn node() -> PooledBreaker {
        PooledBreaker::new(BreakerConfig::default())
    }

    fn open() -> (Table, PooledBreaker, PooledBreaker) {
        let (mut table, mut one, mut two) = (Table::default(), node(), node());
        for _ in 0..2 {
            one.record(0, false, T0);
            two.record(0, false, T0);
        }
        let counted = two.report(T0).unwrap();
        table.tell(&mut one, &[counted], T0);
        assert_eq!(table.0.until, Some(at(30)));
        assert_eq!(two.admit(T0), PooledAdmission::Go, "not yet heard of");
        table.tell(&mut two, &[], T0);
        (table, one, two)
    }

    #[test]
    fn an_open_circuit_refuses_everywhere_and_lets_one_probe_through() {
        let (mut table, mut one, mut two) = open();
        for node in [&mut one, &mut two] {
            assert_eq!(node.admit(at(29)), PooledAdmission::Refused(at(30)));
        }
        let (PooledAdmission::Probe(first), PooledAdmission::Probe(second)) =
            (one.admit(at(30)), two.admit(at(30)))
        else {
            panic!("both ask")
        };
        assert!(matches!(one.admit(at(30)), PooledAdmission::Refused(_)), "one question at a time");
        let made = table.change(first);
        assert!(one.asked(first, made));
        let made = table.change(second);
        assert!(made.is_none() && !two.asked(second, made));
        table.tell(&mut two, &[], at(30));
        assert_eq!(two.admit(at(30)), PooledAdmission::Refused(at(31)), "ask again soon");

        let closed = one.probe_ended(one.generation(), true, at(31)).unwrap();
        let made = table.change(closed);
        one.asked(closed, made);
        table.tell(&mut two, &[], at(31));
        assert_eq!((one.admit(at(31)), two.admit(at(31))), (PooledAdmission::Go, PooledAdmission::Go));
        assert_eq!(one.report(at(31)), Some(counts(0, 0)), "with a clean slate");
    }

    #[test]
    fn a_probe_that_is_never_heard_of_again_loses_its_slot() {
        let (mut table, mut one, mut two) = open();
        let PooledAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        one.asked(probe, made);
        let dead = one.generation();
        table.tell(&mut two, &[], at(30));
        let PooledAdmission::Probe(probe) = two.admit(at(60)) else { panic!("the lease is over") };
        let made = table.change(probe);
        two.asked(probe, made);
        table.tell(&mut one, &[], at(60));
        assert_eq!(one.probe_ended(dead, true, at(61)), None, "late");
    }

    #[test]
    fn a_failed_probe_opens_it_again() {
        let (mut table, mut one, _) = open();
        let PooledAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        one.asked(probe, made);
        let failed = one.probe_ended(one.generation(), false, at(31)).unwrap();
        assert_eq!((failed.until, failed.probe_until, failed.openings), (Some(at(61)), None, 2));
    }

    #[test]
    fn an_answer_that_was_overtaken_is_passed_over() {
        let (mut table, mut one, _) = open();
        let (asked_under, seen) = (one.generation(), table.0);
        let PooledAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        one.asked(probe, made);
        assert_eq!(one.learn(asked_under, seen, &[], at(30)), (false, None));
        assert_eq!(one.state(), table.0);
    }

    #[test]
    fn a_change_that_was_heard_of_before_its_answer_is_still_ours() {
        let (mut table, mut one, mut two) = open();
        let PooledAdmission::Probe(probe) = one.admit(at(30)) else { panic!() };
        let made = table.change(probe);
        table.tell(&mut one, &[], at(30));
        assert!(one.asked(probe, made));
        assert!(!two.asked(probe, None));
    }

    #[test]
    fn only_what_is_new_is_told_and_now_and_then_that_one_is_there() {
        let mut node = node();
        assert_eq!(node.report(T0), Some(counts(0, 0)));
        assert_eq!(node.report(at(1)), None);
        node.record(0, true, at(2));
        assert_eq!(node.report(at(2)), Some(counts(1, 0)));
        assert_eq!(node.report(at(3)), None);
        assert_eq!(node.report(at(22)), Some(counts(1, 0)), "a third of the window later");
        assert_eq!(node.report(at(63)), Some(counts(0, 0)), "it has fallen out of the window");
        node.record(0, false, at(64));
        assert_eq!(node.report(at(64)), Some(counts(0, 1)));
        assert_eq!(
            node.report(at(65)),
            Some(counts(0, 1)),
            "others may have told the same at the same moment"
        );
    }
}
