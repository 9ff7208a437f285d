//! `DELETE /v1/dlq`: deletes dead events for good.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use redrive_retry::parse_duration;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::auth::MayAdmin;
use crate::api::body::Query;
use crate::api::problem::Problem;
use crate::api::{Api, reply};

/// Which ones.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PurgeQuery {
    /// Those published at least this long ago
    #[param(pattern = "^[0-9]{1,5}(s|m|h|d)$", example = "7d")]
    older_than: String,
}

/// What has become of them.
#[derive(Debug, Serialize, ToSchema)]
struct Purged {
    /// How many are gone.
    purged: u64,
}

/// Delete old dead events for good
#[utoipa::path(delete, path = "/v1/dlq", tag = "dlq", security(("token" = ["admin"])), params(PurgeQuery),
    responses((status = 200, body = Purged)))]
pub(crate) async fn purge(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Query(query): Query<PurgeQuery>,
) -> Result<Response, Problem> {
    let age = parse_duration(&query.older_than)
        .map_err(|error| Problem::invalid(format!("older_than: {error}")))?;
    let purged = api.bus.dlq().purge_older_than(age).await?;
    tracing::info!(target: "redrive::http", purged, older_than = query.older_than, "dead events were deleted");
    Ok(reply::ok(&Purged { purged }))
}
