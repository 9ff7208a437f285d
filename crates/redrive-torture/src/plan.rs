//! Planned outcome of an event: part of its payload, so that handlers follow it and the oracle can compare.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use redrive::events::Metadata;
use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// Behaviour of an event's handlers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Plan {
    /// Succeeds at once.
    Succeed,
    /// Takes some milliseconds, so that a fault finds it in flight.
    Dawdle,
    /// Fails this many times, then succeeds.
    Fail(u32),
    /// Panics this many times, then succeeds.
    Panic(u32),
    /// Fails at every attempt.
    Never,
    /// Fails once, permanently.
    Permanent,
}

impl Plan {
    /// Any plan; one in five dies.
    pub fn any(dice: &mut Dice) -> Self {
        match dice.within(0..20) {
            0 | 1 => Plan::Never,
            2 | 3 => Plan::Permanent,
            4 | 5 => Plan::Fail(1),
            6 => Plan::Fail(2),
            7 => Plan::Panic(1),
            8 => Plan::Dawdle,
            _ => Plan::Succeed,
        }
    }

    /// Whether it becomes a dead letter.
    pub fn dies(self) -> bool {
        matches!(self, Plan::Never | Plan::Permanent)
    }

    /// Number of planned failures, if it does not die.
    pub fn failures(self) -> u32 {
        match self {
            Plan::Fail(times) | Plan::Panic(times) => times,
            _ => 0,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Succeed => f.write_str("succeed"),
            Plan::Dawdle => f.write_str("dawdle"),
            Plan::Fail(times) => write!(f, "fail-{times}"),
            Plan::Panic(times) => write!(f, "panic-{times}"),
            Plan::Never => f.write_str("never"),
            Plan::Permanent => f.write_str("permanent"),
        }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is no plan");
        Ok(match text {
            "succeed" => Plan::Succeed,
            "dawdle" => Plan::Dawdle,
            "never" => Plan::Never,
            "permanent" => Plan::Permanent,
            _ => {
                let (kind, times) = text.split_once('-').ok_or_else(unknown)?;
                let times = times.parse().map_err(|_| unknown())?;
                match kind {
                    "fail" => Plan::Fail(times),
                    "panic" => Plan::Panic(times),
                    _ => return Err(unknown()),
                }
            }
        })
    }
}

impl TryFrom<String> for Plan {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Plan> for String {
    fn from(plan: Plan) -> String {
        plan.to_string()
    }
}

/// The payload of every event of the harness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// Behaviour of its handlers.
    pub plan: Plan,
    /// A number, repeated in the metadata where there is some.
    pub n: u64,
    /// The batch it was published in, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// Padding.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ballast: String,
}

impl Payload {
    /// Payload of a single event.
    pub fn new(plan: Plan, n: u64) -> Self {
        Payload { plan, n, batch: None, ballast: String::new() }
    }

    /// Hash of everything but the plan, which a redrive may edit, and of the metadata.
    pub fn content(&self, metadata: &Metadata) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.n, self.batch.map(|batch| (batch.key, batch.size)), &self.ballast).hash(&mut hasher);
        metadata.iter().for_each(|entry| entry.hash(&mut hasher));
        hasher.finish()
    }
}

/// Events that are stored together or not at all.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Which.
    pub key: u64,
    /// Number of events in the batch.
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let plans =
            [Plan::Succeed, Plan::Dawdle, Plan::Fail(2), Plan::Panic(1), Plan::Never, Plan::Permanent];
        for plan in plans {
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        assert!("fail".parse::<Plan>().is_err());
        assert!("dance-2".parse::<Plan>().is_err());
    }
}
