//! `/healthz` and `/readyz`: liveness and readiness.

use serde::{Deserialize, Serialize};

/// Response of a check that passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always `ok`.
    #[cfg_attr(feature = "schema", schema(example = "ok"))]
    pub status: String,
}

impl Health {
    /// The response of a check that passed.
    pub fn ok() -> Self {
        Health { status: "ok".to_owned() }
    }
}
