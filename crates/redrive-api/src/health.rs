//! `/healthz` and `/readyz`: liveness and readiness.

use serde::{Deserialize, Serialize};

use crate::client::{Client, Result};

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

impl Client {
    /// Checks that the server accepts requests and its store answers.
    pub async fn ready(&self) -> Result<Health> {
        self.get("/readyz", &()).await
    }
}
