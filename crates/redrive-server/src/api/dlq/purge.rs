//! `DELETE /v1/dlq`: deletes dead letters for good.

use std::time::Duration;

use axum::extract::State;
use redrive_api::dlq::{PurgeQuery, Purged};
use redrive_retry::duration::parse_duration;

use crate::api::auth::MayAdmin;
use crate::api::body::Query;
use crate::api::problem::Problem;
use crate::api::{ApiState, Reply, reply};

/// Longest age, in digits: of milliseconds, and of any other unit.
const MAX_MILLIS_DIGITS: usize = 12;
const MAX_AGE_DIGITS: usize = 5;

/// Delete old dead letters for good
#[utoipa::path(delete, path = "/v1/dlq", tag = "dlq", security(("token" = ["admin"])), params(PurgeQuery),
    responses((status = 200, body = Purged)))]
pub(crate) async fn purge(State(api): ApiState, _: MayAdmin, Query(query): Query<PurgeQuery>) -> Reply {
    let age = age(&query.older_than)?;
    let purged = api.bus.dlq().purge_older_than(age).await?;
    tracing::info!(target: "redrive::http", purged, older_than = query.older_than, "dead letters were deleted");
    Ok(reply::ok(&Purged { purged }))
}

/// Reads an age. The unit is required: a guess would delete the wrong events for good.
fn age(text: &str) -> Result<Duration, Problem> {
    let millis = text.strip_suffix("ms").map(|number| (number, MAX_MILLIS_DIGITS));
    let other = || text.strip_suffix(['s', 'm', 'h', 'd']).map(|number| (number, MAX_AGE_DIGITS));
    let is_number = millis.or_else(other).is_some_and(|(number, digits)| {
        (1..=digits).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    parse_duration(text).ok().filter(|_| is_number).ok_or_else(|| {
        Problem::invalid(
            "older_than is a number of up to five digits with its unit, such as 90s, 30m, 12h or 7d, or up to 12 digits of ms",
        )
    })
}
