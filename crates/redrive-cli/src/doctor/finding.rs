//! Result of one check of `redrive doctor`.

use serde::Serialize;

/// Severity of a finding.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    Warn,
    /// Works, but a person has to decide or act.
    Act,
    /// Does not work, or will not.
    Fail,
}

/// Name of a check, its result, and the remedy.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn act(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Act, found: found.into(), advice: Some(advice.into()) }
    }

    /// The finding of a check that the asked service cannot make.
    pub(super) fn not_served(check: &'static str) -> Self {
        Finding::warn(check, "not served here", "ask redrive serve, or use --db")
    }

    pub(super) fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}
