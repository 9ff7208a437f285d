//! `DELETE /v1/dlq`: deletes dead events for good.

use std::sync::Arc;
use std::time::Duration;

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
    let age = age(&query.older_than)?;
    let purged = api.bus.dlq().purge_older_than(age).await?;
    tracing::info!(target: "redrive::http", purged, older_than = query.older_than, "dead events were deleted");
    Ok(reply::ok(&Purged { purged }))
}

/// A number and its unit. Without the unit it would be a guess, and what is deleted is gone.
fn age(text: &str) -> Result<Duration, Problem> {
    let number = text.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or("");
    let is_number = (1..=5).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    parse_duration(text).ok().filter(|_| is_number).ok_or_else(|| {
        Problem::invalid("older_than is a number of up to five digits with its unit: 90s, 30m, 12h or 7d")
    })
}
