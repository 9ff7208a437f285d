//! Configuration of both buses: event types, possible subscriptions, and the numbers of one case.

use std::time::Duration;

use redrive::retry::breaker::BreakerConfig;
use redrive::retry::{Jitter, RetryOverride, RetryPolicy};

use super::circuit::CircuitRules;

/// The event types.
pub(super) const TOPICS: [&str; 4] = ["a.one", "a.two", "b.one", "c.none"];

/// Maximum attempts of the bus's policy.
pub(super) const ATTEMPTS: u32 = 3;
pub(super) const BASE_MS: i64 = 100;
pub(super) const MAX_DELAY_MS: i64 = 300;

/// A larger payload is refused.
pub(super) const MAX_PAYLOAD: usize = 2000;

/// A subscription that a case may make.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) pattern: &'static str,
    /// Event types that the pattern matches, listed by hand.
    pub(super) wants: &'static [&'static str],
    pub(super) timeout_ms: i64,
    pub(super) attempts: Option<u32>,
    pub(super) base_ms: Option<i64>,
    pub(super) longest_ms: Option<i64>,
    pub(super) circuit: CircuitRules,
}

const CIRCUIT: CircuitRules = CircuitRules {
    min_samples: 3,
    window_ms: 60_000,
    open_ms: 2000,
    growth: 2,
    longest_open_ms: 6000,
    lease_ms: 1000,
};

/// All of them.
pub(super) const KINDS: [Kind; 5] = [
    Kind {
        name: "every",
        pattern: "*",
        wants: &TOPICS,
        timeout_ms: 500,
        attempts: None,
        base_ms: None,
        longest_ms: None,
        circuit: CIRCUIT,
    },
    Kind {
        name: "a-hasty",
        pattern: "a.*",
        wants: &["a.one", "a.two"],
        timeout_ms: 300,
        attempts: Some(2),
        base_ms: None,
        longest_ms: None,
        circuit: CircuitRules { min_samples: 2, open_ms: 1500, growth: 1, lease_ms: 5000, ..CIRCUIT },
    },
    // Handlers of this kind may take longer than the lease of a probe.
    Kind {
        name: "a-patient",
        pattern: "a.*",
        wants: &["a.one", "a.two"],
        timeout_ms: 3000,
        attempts: Some(5),
        base_ms: Some(40),
        longest_ms: None,
        circuit: CircuitRules { min_samples: 2, open_ms: 1000, growth: 1, lease_ms: 400, ..CIRCUIT },
    },
    Kind {
        name: "b",
        pattern: "b.*",
        wants: &["b.one"],
        timeout_ms: 700,
        attempts: None,
        base_ms: Some(250),
        longest_ms: Some(260),
        circuit: CircuitRules { window_ms: 6000, ..CIRCUIT },
    },
    Kind {
        name: "two",
        pattern: "*.two",
        wants: &["a.two"],
        timeout_ms: 400,
        attempts: Some(4),
        base_ms: None,
        longest_ms: Some(150),
        circuit: CircuitRules { min_samples: 1, open_ms: 700, ..CIRCUIT },
    },
];

impl Kind {
    /// Builds the retry override of this kind for the real bus.
    pub(super) fn retry(&self) -> Option<RetryOverride> {
        if self.attempts.is_none() && self.base_ms.is_none() && self.longest_ms.is_none() {
            return None;
        }
        let mut retry = RetryOverride::new();
        if let Some(attempts) = self.attempts {
            retry = retry.max_attempts(attempts);
        }
        if let Some(millis) = self.base_ms {
            retry = retry.base_delay(millis_of(millis));
        }
        if let Some(millis) = self.longest_ms {
            retry = retry.max_delay(millis_of(millis));
        }
        Some(retry)
    }

    /// Builds the circuit breaker settings of this kind for the real bus.
    pub(super) fn breaker(&self) -> BreakerConfig {
        let rules = self.circuit;
        #[allow(clippy::cast_precision_loss)] // 1 or 2
        let growth = rules.growth as f64;
        BreakerConfig::builder()
            .failure_ratio(0.5)
            .min_samples(rules.min_samples)
            .window(millis_of(rules.window_ms))
            .open_for(millis_of(rules.open_ms))
            .open_growth(growth)
            .max_open_for(millis_of(rules.longest_open_ms))
            .probe_lease(millis_of(rules.lease_ms))
            .build()
            .expect("the numbers of the scene are valid")
    }
}

/// The numbers of one case.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) per_subscription: bool,
    pub(super) unmatched_dies: bool,
    pub(super) in_flight: usize,
    pub(super) deadline_ms: Option<i64>,
    /// Retention of handled events.
    pub(super) retention_ms: Option<i64>,
    pub(super) shutdown_ms: i64,
    /// Kinds that are subscribed at the start.
    pub(super) subscribed: Vec<usize>,
    /// On a file, where the process can restart; otherwise in memory, which is faster.
    pub(super) on_file: bool,
}

impl Scene {
    /// Policy for the real bus.
    pub(super) fn policy(&self) -> RetryPolicy {
        let policy = RetryPolicy::builder()
            .max_attempts(ATTEMPTS)
            .base_delay(millis_of(BASE_MS))
            .multiplier(2.0)
            .max_delay(millis_of(MAX_DELAY_MS))
            .jitter(Jitter::None);
        let policy = match self.deadline_ms {
            Some(deadline) => policy.deadline(millis_of(deadline)),
            None => policy,
        };
        policy.build().expect("the numbers of the scene are valid")
    }
}

pub(super) fn millis_of(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
