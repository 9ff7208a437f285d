//! Random choices that come out the same for the same seed.

use std::ops::Range;
use std::time::Duration;

use redrive::EventId;
use uuid::Builder;

/// SplitMix64: every seed is good, and a run is repeated by its seed on every machine and in every release.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Choices of a seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// Independent choices for a part of a run.
    pub fn split(seed: u64, part: u64) -> Self {
        let mut dice = Dice(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.roll();
        dice
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of a range that is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.roll() % (range.end - range.start)
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, share: u64) -> bool {
        self.within(0..100) < share
    }

    /// A duration of this range of milliseconds, in steps of 0.1 ms.
    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.within(range.start * 1000..range.end * 1000) / 100 * 100)
    }

    /// One of several.
    pub fn choose<'a, T>(&mut self, among: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(among.len()).unwrap_or(u64::MAX);
        if count == 0 {
            return None;
        }
        among.get(usize::try_from(self.within(0..count)).unwrap_or(0))
    }

    /// A random event id, without time order.
    pub fn id(&mut self) -> EventId {
        let (high, low) = (u128::from(self.roll()), u128::from(self.roll()));
        EventId::from_uuid(Builder::from_random_bytes(((high << 64) | low).to_be_bytes()).into_uuid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_choices() {
        let rolls = |seed| {
            let mut dice = Dice::new(seed);
            [dice.roll(), dice.within(3..9), u64::from(dice.percent(50))]
        };
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        assert_ne!(Dice::split(7, 0).roll(), Dice::split(7, 1).roll());
    }

    #[test]
    fn choices_stay_within_their_range() {
        let mut dice = Dice::new(1);
        for _ in 0..1000 {
            assert!((3..9).contains(&dice.within(3..9)));
            assert!(dice.millis(2..4) < Duration::from_millis(4));
        }
        assert_eq!(dice.choose::<u8>(&[]), None);
    }
}
