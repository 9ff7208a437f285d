//! Overrides of a retry policy.

use serde::{Deserialize, Serialize};

use crate::open_enum::open_enum;

open_enum! {
    /// Preset of attempts and waits.
    pub enum RetryPreset {
        /// The schedule that Standard Webhooks recommends: 10 attempts in three days.
        Standard = "standard",
        /// 23 attempts in almost five days.
        Patient = "patient",
    }
}

/// Fields of a retry policy that differ from the server's policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Preset to start from, in place of the server's policy. `standard` has fixed waits: it excludes `base_delay_ms` and `multiplier`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<RetryPreset>,
    /// Attempts in total, including the first.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Wait before the second attempt.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 86_400_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_delay_ms: Option<u64>,
    /// Longest wait.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 86_400_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay_ms: Option<u64>,
    /// Factor between one wait and the next.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    /// Random spread of waits: `none`, `10%`, `0..1s`, `full`, `equal`.
    #[cfg_attr(feature = "schema", schema(example = "10%"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
}
