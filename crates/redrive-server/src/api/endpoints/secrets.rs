//! `/v1/endpoints/{id}/secret`: what a receiver verifies signatures with.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use redrive_webhook::{Endpoint, EndpointId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::wish::{Signing, secret};
use crate::api::auth::MayAdmin;
use crate::api::body::{MaybeJson, Named};
use crate::api::problem::Problem;
use crate::api::time::Instant;
use crate::api::{Api, reply};

/// How long the secret before is used beside the new one, if nobody says so: a day.
const USUAL_OVERLAP: u64 = 24 * 3600;
const LONGEST_OVERLAP: u64 = 30 * 24 * 3600;

/// A secret that is to be used from now on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateSecret {
    /// A secret of your own; a new one is made if there is none.
    #[schema(max_length = 200)]
    secret: Option<String>,
    /// What kind of secret is made.
    signing: Option<Signing>,
    /// For how many seconds messages are signed with the present secret as well; a day if nothing is said.
    #[schema(minimum = 0, maximum = 2_592_000)]
    overlap_s: Option<u64>,
}

/// What a receiver verifies signatures with. As long as there are several, messages are signed with each of them.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SecretList {
    /// The newest first.
    data: Vec<SecretView>,
}

/// One secret.
#[derive(Debug, Serialize, ToSchema)]
struct SecretView {
    /// `whsec_…`, or `whpk_…` if it is a public key.
    secret: String,
    created_at: Instant,
    /// When it is not used any more; `null` for the newest.
    expires_at: Option<Instant>,
}

impl From<Endpoint> for SecretList {
    fn from(endpoint: Endpoint) -> Self {
        let data = endpoint.secrets.iter().map(|one| SecretView {
            secret: one.secret.for_receiver(),
            created_at: one.created_at.into(),
            expires_at: one.expires_at.map(Instant),
        });
        SecretList { data: data.collect() }
    }
}

/// Show the secrets of an endpoint
#[utoipa::path(get, path = "/v1/endpoints/{id}/secret", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = SecretList)))]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
) -> Result<Response, Problem> {
    Ok(reply::ok(&SecretList::from(api.webhooks.book().get(&id).await?)))
}

/// Sign with another secret from now on, and with the present one for a while as well
#[utoipa::path(post, path = "/v1/endpoints/{id}/secret/rotate", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = Option<RotateSecret>, responses((status = 200, body = SecretList)))]
pub(crate) async fn rotate(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    MaybeJson(wanted): MaybeJson<RotateSecret>,
) -> Result<Response, Problem> {
    let wanted = wanted.unwrap_or_default();
    let overlap = wanted.overlap_s.unwrap_or(USUAL_OVERLAP);
    if overlap > LONGEST_OVERLAP {
        return Err(Problem::invalid(format!("overlap_s is at most {LONGEST_OVERLAP}")));
    }
    let secret = secret(wanted.secret, wanted.signing)?;
    let endpoint = api.webhooks.rotate(&id, Some(secret), Duration::from_secs(overlap)).await?;
    tracing::info!(target: "redrive::endpoints", %id, "a secret was exchanged");
    Ok(reply::ok(&SecretList::from(endpoint)))
}
