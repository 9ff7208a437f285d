//! The name of a lease in the API: the process that granted it, and its token.

use std::fmt;
use std::str::FromStr;

use redrive::pull::LeaseToken;
use uuid::Uuid;

/// A lease.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    pub(crate) instance: Uuid,
    pub(crate) token: LeaseToken,
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.instance.simple(), self.token)
    }
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('.').and_then(|(instance, token)| {
            Some(LeaseName { instance: Uuid::try_parse(instance).ok()?, token: token.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            format!("{text:?} is not a lease: pass on the `lease` of the event")
        })
    }
}
