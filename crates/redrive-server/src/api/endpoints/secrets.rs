//! `/v1/endpoints/{id}/secret`: the secrets that verify signatures.

use std::time::Duration;

use axum::extract::State;
use redrive_api::endpoints::{EndpointSecret, RotateSecret};
use redrive_api::page::List;
use redrive_api::time::Time;
use redrive_webhook::{Endpoint, EndpointId};

use super::patch::secret;
use crate::api::auth::MayAdmin;
use crate::api::body::{MaybeJson, Named};
use crate::api::problem::Problem;
use crate::api::{ApiState, Reply, reply};

/// Time for which the previous secret signs as well: by default a day, at most 30.
const DEFAULT_OVERLAP_S: u64 = 24 * 3600;
const MAX_OVERLAP_S: u64 = 30 * 24 * 3600;

fn secrets(endpoint: &Endpoint) -> List<EndpointSecret> {
    let data = endpoint.secrets.iter().map(|one| EndpointSecret {
        secret: one.secret.for_receiver(),
        created_at: one.created_at.into(),
        expires_at: one.expires_at.map(Time),
    });
    List { data: data.collect() }
}

/// Show the secrets of an endpoint, the newest first
#[utoipa::path(get, path = "/v1/endpoints/{id}/secret", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    responses((status = 200, body = List<EndpointSecret>)))]
pub(crate) async fn show(State(api): ApiState, _: MayAdmin, Named(id): Named<EndpointId>) -> Reply {
    Ok(reply::ok(&secrets(&api.webhooks.endpoints().get(&id).await?)))
}

/// Rotate the secret of an endpoint; the previous one signs as well for a while
#[utoipa::path(post, path = "/v1/endpoints/{id}/secret/rotate", tag = "endpoints", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The endpoint", pattern = "^ep_[0-9a-f]{32}$")),
    request_body = Option<RotateSecret>, responses((status = 200, body = List<EndpointSecret>)))]
pub(crate) async fn rotate(
    State(api): ApiState,
    _: MayAdmin,
    Named(id): Named<EndpointId>,
    MaybeJson(wanted): MaybeJson<RotateSecret>,
) -> Reply {
    let wanted = wanted.unwrap_or_default();
    let overlap = wanted.overlap_s.unwrap_or(DEFAULT_OVERLAP_S);
    if overlap > MAX_OVERLAP_S {
        return Err(Problem::invalid(format!("overlap_s is at most {MAX_OVERLAP_S}")));
    }
    let secret = secret(wanted.secret, wanted.signing)?;
    let endpoint = api.webhooks.rotate(&id, Some(secret), Duration::from_secs(overlap)).await?;
    tracing::info!(target: "redrive::endpoints", %id, "the secret of an endpoint was rotated");
    Ok(reply::ok(&secrets(&endpoint)))
}
