//! Chooses disk images of a recording: when the power fails, and which changes have arrived.
//!
//! All choices of an image come from its number. The first images cover the moments at which a mistake would show, each once
//! and in random order: an unfinished sync, a sync that just ended, a promise that was just made. The next ones use random
//! moments.

use std::ops::Range;

use super::disk::{Disk, Image};
use super::recording::Recording;
use super::trace::{Call, Step};
use crate::dice::Dice;
use crate::journal::Fact;

/// The images of one recording.
#[derive(Debug)]
pub(super) struct Images<'r> {
    recording: &'r Recording,
    seed: u64,
    /// Critical moments of the power loss, as step counts, in random order.
    moments: Vec<usize>,
}

/// One power loss.
#[derive(Debug)]
pub(super) struct Loss<'r> {
    /// Number of this power loss among the images of the recording.
    pub(super) number: u64,
    /// Files on the disk.
    pub(super) image: Image,
    /// Facts that the worker had learned before.
    pub(super) facts: &'r [Fact],
}

impl<'r> Images<'r> {
    pub(super) fn new(recording: &'r Recording, seed: u64) -> Self {
        let mut moments = moments(recording);
        let mut dice = Dice::new(seed);
        for last in (1..moments.len()).rev() {
            moments.swap(last, below(last + 1, &mut dice));
        }
        Images { recording, seed, moments }
    }

    /// Moment of the power loss, and the dice of the rest.
    fn choose(&self, number: u64) -> (usize, Dice) {
        let mut dice = Dice::split(self.seed, number);
        let steps = self.recording.trace.steps.len();
        let first = usize::try_from(number).ok().and_then(|number| self.moments.get(number));
        let cut = match first {
            Some(cut) => *cut,
            None if dice.percent(50) => dice.choose(&self.moments).copied().unwrap_or(steps),
            None => below(steps + 1, &mut dice),
        };
        (cut, dice)
    }

    /// Makes the images of these numbers, in the order of their moments, until `is_wanted` refuses.
    pub(super) fn each(&self, numbers: Range<u64>, mut is_wanted: impl FnMut(Loss<'r>) -> bool) {
        let mut chosen: Vec<_> = numbers.map(|number| (self.choose(number), number)).collect();
        chosen.sort_by_key(|((cut, _), number)| (*cut, *number));
        let mut disk = Disk::new(&self.recording.before);
        let mut taken = 0;
        for ((cut, mut dice), number) in chosen {
            let steps = &self.recording.trace.steps;
            steps[taken..cut].iter().for_each(|step| disk.step(step));
            taken = cut;
            let known = self.recording.known_at.partition_point(|known_at| *known_at <= cut);
            let loss = Loss { number, image: disk.image(&mut dice), facts: &self.recording.facts[..known] };
            if !is_wanted(loss) {
                return;
            }
        }
    }
}

fn moments(recording: &Recording) -> Vec<usize> {
    let steps = &recording.trace.steps;
    let is_sync = |step: &Step| matches!(step, Step::Begin(Call::Sync { .. } | Call::SyncFolder));
    let syncs = steps.iter().enumerate().filter(|(_, step)| match step {
        Step::End(began) => is_sync(&steps[*began]),
        step => is_sync(step),
    });
    let syncs = syncs.map(|(index, _)| index + 1);
    let is_promise =
        |fact: &Fact| matches!(fact, Fact::Ack { .. } | Fact::Redriven { .. } | Fact::Purged { .. });
    let promises = recording.facts.iter().zip(&recording.known_at).filter(|(fact, _)| is_promise(fact));
    let mut moments: Vec<usize> = promises.map(|(_, known_at)| *known_at).chain(syncs).collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// A random number below a limit that is not 0.
pub(super) fn below(limit: usize, dice: &mut Dice) -> usize {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    usize::try_from(dice.within(0..limit)).unwrap_or(0)
}
