//! Fate of unsynced changes at a power loss.

use super::images::below;
use crate::dice::Dice;

/// Fate of one change.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lost,
    Whole,
    Torn,
}

/// Fate of the changes of one file. Mostly one rare thing at a time: bugs show where nearly all changes arrived, and where a
/// later one arrived without an earlier one.
#[derive(Debug)]
pub(super) enum Luck {
    /// Nothing arrived.
    Nothing,
    /// All arrived.
    All,
    /// All before this one, which is torn; nothing after it.
    Until(usize),
    /// All but this one.
    AllBut(usize, Fate),
    /// Only this one.
    Only(usize, Fate),
    /// Each independently, with these percentages lost and torn.
    Each { lost: u64, torn: u64 },
}

impl Luck {
    pub(super) fn throw(count: usize, dice: &mut Dice) -> Self {
        let fate = |dice: &mut Dice| if dice.percent(50) { Fate::Torn } else { Fate::Lost };
        match dice.within(0..20) {
            0 | 1 => Luck::Nothing,
            2 | 3 => Luck::All,
            4..=6 => Luck::Until(below(count, dice)),
            7..=10 => Luck::AllBut(below(count, dice), fate(dice)),
            11 => {
                let arrived = if dice.percent(50) { Fate::Torn } else { Fate::Whole };
                Luck::Only(below(count, dice), arrived)
            }
            // The last change is the commit.
            12..=14 => Luck::AllBut(count - 1, fate(dice)),
            15 | 16 => Luck::Each { lost: 5, torn: 5 },
            17 => Luck::Each { lost: 90, torn: 5 },
            _ => Luck::Each { lost: 33, torn: 34 },
        }
    }

    pub(super) fn of(&self, index: usize, dice: &mut Dice) -> Fate {
        match *self {
            Luck::Nothing => Fate::Lost,
            Luck::All => Fate::Whole,
            Luck::Until(last) if index == last => Fate::Torn,
            Luck::Until(last) if index < last => Fate::Whole,
            Luck::Until(_) => Fate::Lost,
            Luck::AllBut(one, fate) | Luck::Only(one, fate) if index == one => fate,
            Luck::AllBut(..) => Fate::Whole,
            Luck::Only(..) => Fate::Lost,
            Luck::Each { lost, torn } => match dice.within(0..100) {
                chance if chance < lost => Fate::Lost,
                chance if chance < lost + torn => Fate::Torn,
                _ => Fate::Whole,
            },
        }
    }
}
