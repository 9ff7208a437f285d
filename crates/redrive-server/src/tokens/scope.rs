//! What a token allows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token allows.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    /// To publish events.
    Publish,
    /// To look at everything.
    Read,
    /// To fetch events, and to say that they are handled.
    Consume,
    /// To do everything.
    Admin,
}

impl Scope {
    pub(crate) const ALL: [Scope; 4] = [Scope::Publish, Scope::Read, Scope::Consume, Scope::Admin];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Scope::Publish => "publish",
            Scope::Read => "read",
            Scope::Consume => "consume",
            Scope::Admin => "admin",
        }
    }

    /// Whether somebody who has these may do this.
    pub(crate) fn is_in(self, scopes: &[Scope]) -> bool {
        scopes.iter().any(|scope| *scope == self || *scope == Scope::Admin)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Scope::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| "use publish, read, consume or admin".to_owned())
    }
}
