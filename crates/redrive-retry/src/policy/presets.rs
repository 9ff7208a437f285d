//! Named policy presets.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{PolicyError, RetryPolicy};
use crate::backoff::{Backoff, Growth};
use crate::category::Category;
use crate::jitter::Jitter;
use crate::ratio::Ratio;
use crate::rules::Rules;

/// Preset that an override can start from, beside the default of webhooks.
///
/// ```
/// use redrive_retry::{RetryOverride, RetryPolicy, policy::Preset};
/// let policy = RetryOverride::new().preset(Preset::Standard).apply_to(&RetryPolicy::webhook())?;
/// assert_eq!(policy.max_attempts(), 10);
/// # Ok::<(), redrive_retry::policy::PolicyError>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// [`RetryPolicy::standard`]: three days.
    Standard,
    /// [`RetryPolicy::patient`]: almost five days.
    Patient,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 2] = [Preset::Standard, Preset::Patient];

    /// Name, as in files and requests.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::Standard => "standard",
            Preset::Patient => "patient",
        }
    }

    /// Policy of the preset.
    pub const fn policy(self) -> RetryPolicy {
        match self {
            Preset::Standard => RetryPolicy::standard(),
            Preset::Patient => RetryPolicy::patient(),
        }
    }

    /// Whether its delays are fixed: they have no base delay and no multiplier.
    pub(super) fn is_fixed(self) -> bool {
        self == Preset::Standard
    }
}

impl FromStr for Preset {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        let known = Preset::ALL.into_iter().find(|preset| preset.name() == name);
        known.ok_or_else(|| PolicyError::UnknownWebhookPreset { name: name.chars().take(64).collect() })
    }
}

impl RetryPolicy {
    /// Preset of the event bus: 3 retries, 1 s doubling up to 30 s, ±10 %.
    pub const fn bus() -> Self {
        doubling(4, 1000, 30_000, Jitter::TEN_PERCENT)
    }

    /// Preset of webhooks: 5 attempts, 1 s doubling up to 1 h, ±10 %.
    pub const fn webhook() -> Self {
        doubling(5, 1000, 3_600_000, Jitter::TEN_PERCENT)
    }

    /// Preset of webhooks with the schedule that Standard Webhooks recommends: 10 attempts in three days, after 5 s, 5 min, 30 min, 2 h,
    /// 5 h, 10 h, 14 h, 20 h and 24 h, each ±10 %.
    pub const fn standard() -> Self {
        let mut policy = doubling(10, 5000, 86_400_000, Jitter::TEN_PERCENT);
        policy.backoff.growth = Growth::StandardWebhooks;
        policy
    }

    /// Preset of webhooks whose receiver may be away for days: 23 attempts in almost five days, 1 min doubling up to 8 h, ±10 %.
    pub const fn patient() -> Self {
        doubling(23, 60_000, 28_800_000, Jitter::TEN_PERCENT)
    }

    /// Preset of the retry scheduler: 3 retries, 2 s doubling up to 60 s, plus 0 to 1 s.
    pub const fn scheduler() -> Self {
        doubling(4, 2000, 60_000, Jitter::Additive(Duration::from_secs(1)))
    }

    /// Preset of a guarded call without a predefined category: 3 attempts, 1 s doubling up to 30 s, ±10 %.
    pub const fn call() -> Self {
        doubling(3, 1000, 30_000, Jitter::TEN_PERCENT)
    }

    /// Preset of a category, with an attempt timeout; [`call`](Self::call) for a custom one, which has none.
    pub const fn for_category(category: &Category) -> Self {
        use Category::{
            ApiRequest, ApiValidation, ApprovalCheck, ApprovalGrant, Custom, ExecutionContainment,
            ExecutionExpiration, ExecutionIntent, KvCreate, KvDelete, KvGet, KvPut, NatsConnect, NatsPublish,
            NatsStreamCreate, NatsSubscribe, ReplayProcessing, ReplayValidation,
        };
        // The timeouts are at least ten times what a healthy system needs; decision record 29 has the reasons.
        let (max_attempts, base_ms, max_ms, timeout_seconds) = match category {
            NatsConnect => (5, 1000, 30_000, 10),
            NatsPublish | NatsSubscribe | KvGet | KvPut => (3, 500, 10_000, 5),
            NatsStreamCreate | ApprovalGrant => (2, 2000, 60_000, 30),
            ExecutionIntent | ExecutionContainment => (2, 2000, 60_000, 60),
            KvCreate => (2, 1000, 30_000, 30),
            KvDelete => (2, 1000, 30_000, 5),
            ReplayValidation => (2, 1000, 30_000, 300),
            ExecutionExpiration => (1, 1000, 30_000, 300),
            ReplayProcessing => (1, 1000, 30_000, 3600),
            ApprovalCheck => (3, 1000, 30_000, 10),
            ApiRequest => (3, 1000, 30_000, 30),
            ApiValidation => (2, 500, 10_000, 5),
            Custom(_) => return Self::call(),
        };
        let mut policy = doubling(max_attempts, base_ms, max_ms, Jitter::TEN_PERCENT);
        policy.attempt_timeout = Some(Duration::from_secs(timeout_seconds));
        policy
    }

    /// Finds a preset by name: `bus`, `webhook`, `standard`, `patient`, `scheduler`, `call`, or a category (`API_REQUEST`, `RETRY_API_REQUEST`).
    pub fn preset(name: &str) -> Result<Self, PolicyError> {
        match name {
            "bus" => Ok(Self::bus()),
            "webhook" => Ok(Self::webhook()),
            "standard" => Ok(Self::standard()),
            "patient" => Ok(Self::patient()),
            "scheduler" => Ok(Self::scheduler()),
            "call" => Ok(Self::call()),
            other => other
                .parse::<Category>()
                .map(|category| Self::for_category(&category))
                .map_err(|_| PolicyError::UnknownPreset { name: other.chars().take(64).collect() }),
        }
    }
}

/// The specification's `DEFAULT_RETRY_POLICY`: the bus preset.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self::bus()
    }
}

const fn doubling(max_attempts: u32, base_ms: u64, max_ms: u64, jitter: Jitter) -> RetryPolicy {
    RetryPolicy {
        max_attempts,
        backoff: Backoff {
            growth: Growth::Exponential,
            base_delay: Duration::from_millis(base_ms),
            multiplier: Ratio::from_millionths(2_000_000),
            max_delay: Duration::from_millis(max_ms),
            jitter,
        },
        attempt_timeout: None,
        deadline: None,
        rules: Rules::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(policy: &RetryPolicy) -> (u32, u128, u128, f64, String) {
        let millis = |d: Duration| d.as_millis();
        let p = policy;
        (
            p.max_attempts(),
            millis(p.base_delay()),
            millis(p.max_delay()),
            p.multiplier(),
            p.jitter().to_string(),
        )
    }

    #[test]
    fn the_bus_preset_is_the_default_policy_of_the_specification() {
        assert_eq!(numbers(&RetryPolicy::bus()), (4, 1000, 30_000, 2.0, "10%".into()));
        assert_eq!(RetryPolicy::bus().max_retries(), 3);
        assert_eq!(RetryPolicy::default(), RetryPolicy::bus());
    }

    #[test]
    fn the_webhook_preset_has_the_specified_settings() {
        assert_eq!(numbers(&RetryPolicy::webhook()), (5, 1000, 3_600_000, 2.0, "10%".into()));
    }

    #[test]
    fn the_scheduler_preset_has_the_specified_settings() {
        assert_eq!(numbers(&RetryPolicy::scheduler()), (4, 2000, 60_000, 2.0, "0..1s".into()));
        assert_eq!(RetryPolicy::scheduler().max_retries(), 3);
    }

    #[test]
    fn the_call_preset_has_the_field_defaults_of_the_retry_manager() {
        let policy = RetryPolicy::call();
        assert_eq!(numbers(&policy), (3, 1000, 30_000, 2.0, "10%".into()));
        assert_eq!(
            policy.rules(),
            &Rules::new(),
            "no rules: every error is retried unless marked as permanent"
        );
    }

    #[test]
    fn the_categories_have_the_specified_policies() {
        let matrix = [
            ("NATS_CONNECT", 5, 1.0, 30.0, 10),
            ("NATS_PUBLISH", 3, 0.5, 10.0, 5),
            ("NATS_SUBSCRIBE", 3, 0.5, 10.0, 5),
            ("NATS_STREAM_CREATE", 2, 2.0, 60.0, 30),
            ("KV_CREATE", 2, 1.0, 30.0, 30),
            ("KV_GET", 3, 0.5, 10.0, 5),
            ("KV_PUT", 3, 0.5, 10.0, 5),
            ("KV_DELETE", 2, 1.0, 30.0, 5),
            ("EXECUTION_INTENT", 2, 2.0, 60.0, 60),
            ("EXECUTION_CONTAINMENT", 2, 2.0, 60.0, 60),
            ("EXECUTION_EXPIRATION", 1, 1.0, 30.0, 300),
            ("APPROVAL_CHECK", 3, 1.0, 30.0, 10),
            ("APPROVAL_GRANT", 2, 2.0, 60.0, 30),
            ("REPLAY_PROCESSING", 1, 1.0, 30.0, 3600),
            ("REPLAY_VALIDATION", 2, 1.0, 30.0, 300),
            ("API_REQUEST", 3, 1.0, 30.0, 30),
            ("API_VALIDATION", 2, 0.5, 10.0, 5),
        ];
        assert_eq!(matrix.len(), Category::ALL.len());
        for (name, attempts, base, max, timeout) in matrix {
            let policy = RetryPolicy::preset(name).unwrap();
            let expected = RetryPolicy::builder()
                .max_attempts(attempts)
                .base_delay(Duration::from_secs_f64(base))
                .max_delay(Duration::from_secs_f64(max))
                .multiplier(2.0)
                .jitter(Jitter::TEN_PERCENT)
                .attempt_timeout(Duration::from_secs(timeout))
                .build()
                .unwrap();
            assert_eq!(policy, expected, "{name}");
        }
    }

    #[test]
    fn an_unknown_preset_names_the_known_ones() {
        let error = RetryPolicy::preset("buss").unwrap_err().to_string();
        assert!(error.contains("bus, webhook, standard, patient, scheduler"), "{error}");
    }
}
