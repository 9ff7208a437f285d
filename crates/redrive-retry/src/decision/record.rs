//! [`DecisionRecord`]: a decision with its inputs and a digest, verifiable later.
//!
//! Verification recomputes the digest, which detects a changed record, and the decision, which detects other rules.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Decision, Situation, decide};

/// Version of the decision rules. Records of another version are not verified.
pub const RECORD_VERSION: u32 = 1;

/// Inputs, output and digest of one decision, serialised as one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    version: u32,
    situation: Situation<'static>,
    decision: Decision,
    digest: String,
}

impl DecisionRecord {
    /// Decides and records the decision.
    pub fn decide(situation: Situation<'_>) -> Self {
        let decision = decide(&situation);
        Self::of(situation, decision)
    }

    /// Records a decision made by [`decide`] on this situation.
    pub fn of(situation: Situation<'_>, decision: Decision) -> Self {
        let situation = situation.into_owned();
        let digest = digest(RECORD_VERSION, &situation, &decision);
        DecisionRecord { version: RECORD_VERSION, situation, decision, digest }
    }

    /// The recorded decision.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// The recorded inputs.
    pub fn situation(&self) -> &Situation<'static> {
        &self.situation
    }

    /// Recomputes digest and decision and reports the first difference.
    pub fn verify(&self) -> Result<(), Discrepancy> {
        if self.version != RECORD_VERSION {
            return Err(Discrepancy::Version { found: self.version });
        }
        let computed = digest(self.version, &self.situation, &self.decision);
        if computed != self.digest {
            return Err(Discrepancy::Digest { recorded: self.digest.clone(), computed });
        }
        let recomputed = decide(&self.situation);
        if recomputed != self.decision {
            return Err(Discrepancy::Decision { recorded: self.decision, recomputed });
        }
        Ok(())
    }
}

/// First 128 bits of SHA-256 over the JSON of version, inputs and decision, in hexadecimal.
fn digest(version: u32, situation: &Situation<'_>, decision: &Decision) -> String {
    let json = serde_json::to_vec(&(version, situation, decision))
        .expect("numbers, strings and enums always serialise");
    crate::hex::encode(&Sha256::digest(json)[..16])
}

/// Difference between a record and its recomputation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Discrepancy {
    /// The record has another version.
    #[error(
        "the record has version {found} and these rules are version {RECORD_VERSION}: verify it with the release that wrote it"
    )]
    Version {
        /// Version of the record.
        found: u32,
    },
    /// The record was changed after it was written.
    #[error(
        "the digest is {recorded} but its contents give {computed}: the record was changed after it was written"
    )]
    Digest {
        /// Recorded value.
        recorded: String,
        /// Recomputed value.
        computed: String,
    },
    /// The inputs give another decision.
    #[error(
        "the record says {recorded:?} but its inputs give {recomputed:?}: it was not made by these rules"
    )]
    Decision {
        /// Recorded value.
        recorded: Decision,
        /// Recomputed value.
        recomputed: Decision,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerSnapshot;
    use crate::budget::BudgetSnapshot;
    use crate::decision::Outcome;
    use crate::identity::Identity;
    use crate::{FailureClass, Jitter, RetryPolicy, Timestamp};
    use std::time::Duration;

    /// Deterministic generator, so that a failure can be replayed.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(1);
            Identity::new(self.0, "random", "").hash(0)
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.next() % bound
        }
    }

    fn random_record(random: &mut Random) -> DecisionRecord {
        let jitter = match random.below(5) {
            0 => Jitter::None,
            1 => Jitter::Full,
            2 => Jitter::Equal,
            3 => Jitter::Additive(Duration::from_millis(random.below(5000))),
            #[allow(clippy::cast_precision_loss)]
            _ => Jitter::proportional(random.below(1000) as f64 / 1000.0).unwrap(),
        };
        let base = random.below(10_000);
        #[allow(clippy::cast_precision_loss)]
        let multiplier = 1.0 + random.below(9000) as f64 / 1000.0;
        let mut policy = RetryPolicy::builder()
            .max_attempts(1 + u32::try_from(random.below(10)).unwrap())
            .base_delay(Duration::from_millis(base))
            .max_delay(Duration::from_millis(base + random.below(100_000)))
            .multiplier(multiplier)
            .jitter(jitter);
        if random.below(3) == 0 {
            policy = policy.deadline(Duration::from_millis(1 + random.below(60_000)));
        }
        let class = match random.below(6) {
            0 => FailureClass::Permanent,
            1 => FailureClass::Timeout,
            2 => FailureClass::retry_after(Duration::from_millis(random.below(90_000))),
            3 => FailureClass::Crashed,
            _ => FailureClass::Transient,
        };
        let outcome = match random.below(10) {
            0 => Outcome::Succeeded,
            1 => Outcome::Refused,
            _ => Outcome::Failed(class),
        };
        let now = Timestamp::from_millis(1_767_225_600_000).plus_millis(random.below(1 << 40));
        let event = format!("{:016x}", random.next());
        let identity = Identity::new(random.next(), &event, "shipping");
        let attempt = 1 + u32::try_from(random.below(10)).unwrap();
        let breaker = match random.below(4) {
            0 => BreakerSnapshot::Open { until: now.plus_millis(random.below(60_000)) },
            1 => BreakerSnapshot::HalfOpen { until: now },
            _ => BreakerSnapshot::Closed,
        };
        let budget = match random.below(5) {
            0 => BudgetSnapshot::Spent { again_at: None },
            1 => BudgetSnapshot::Spent { again_at: Some(now.plus_millis(random.below(1000))) },
            2 => BudgetSnapshot::Granted,
            _ => BudgetSnapshot::Unlimited,
        };
        let situation = Situation::new(&policy.build().unwrap(), identity, attempt, outcome, now);
        DecisionRecord::decide(Situation { breaker, budget, ..situation })
    }

    #[test]
    fn a_hundred_thousand_recorded_decisions_verify_after_a_round_trip() {
        let mut random = Random(20_260_125);
        for round in 0..100_000 {
            let record = random_record(&mut random);
            let line = serde_json::to_string(&record).unwrap();
            let back: DecisionRecord =
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("{round}: {e}: {line}"));
            assert_eq!(back.verify(), Ok(()), "{round}: {line}");
        }
    }

    /// Flips every bit of a record: either it cannot be parsed, or verification fails.
    #[test]
    fn every_flipped_bit_is_detected() {
        let mut random = Random(7);
        for _ in 0..20 {
            let record = random_record(&mut random);
            let line = serde_json::to_vec(&record).unwrap();
            for position in 0..line.len() {
                for bit in 0..8 {
                    let mut changed = line.clone();
                    changed[position] ^= 1 << bit;
                    if let Ok(read) = serde_json::from_slice::<DecisionRecord>(&changed) {
                        assert!(
                            read.verify().is_err(),
                            "flipping bit {bit} of byte {position} was not detected: {}",
                            String::from_utf8_lossy(&changed)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_record_of_another_version_is_refused() {
        let record = DecisionRecord { version: 2, ..random_record(&mut Random(1)) };
        let error = record.verify().unwrap_err();
        assert_eq!(error, Discrepancy::Version { found: 2 });
        assert!(error.to_string().contains("the release that wrote it"));
    }

    #[test]
    fn a_forged_decision_with_a_matching_digest_is_detected() {
        let honest = random_record(&mut Random(3));
        let forged = if honest.decision == Decision::Done {
            Decision::Dead { because: crate::decision::DeadReason::Permanent }
        } else {
            Decision::Done
        };
        let record = DecisionRecord::of(honest.situation, forged);
        assert!(matches!(record.verify(), Err(Discrepancy::Decision { .. })));
    }
}
