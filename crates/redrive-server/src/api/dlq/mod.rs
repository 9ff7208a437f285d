//! `/v1/dlq`: the dead-letter queue.

mod retry;

use std::time::Duration;

use axum::extract::State;
use redrive::dlq::{DeadLetter, DlqFilter, DlqGroup, DlqPage};
use redrive::subscription::SubscriptionName;
use redrive::{EventId, EventType};
use redrive_api::dlq::{self, DeadGroup, DeadGroups, DeadReason, DeadSummary, PurgeQuery, Purged};
use redrive_api::page::{List, Page, PageQuery};
use redrive_retry::duration::parse_duration;
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayRead};
use super::body::{Listed, Named, Query};
use super::events::attempt;
use super::problem::Problem;
use super::{ApiState, Reply, Routes, page, reply};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list_dead_letters, purge))
        .routes(routes!(groups))
        .routes(routes!(show_dead_letter))
        .routes(routes!(retry::retry_one))
        .routes(routes!(retry::retry_many))
}

/// Longest text to search for, in characters.
const MAX_TEXT_CHARS: usize = 1000;

/// Converts a filter of the API into that of the store.
fn into_filter(filter: dlq::DlqFilter) -> Result<DlqFilter, Problem> {
    for (name, text) in [("text", &filter.text), ("fingerprint", &filter.fingerprint)] {
        if text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS) {
            return Err(Problem::invalid(format!("{name} has at most {MAX_TEXT_CHARS} characters")));
        }
    }
    if let Some(DeadReason::Other(_)) = &filter.reason {
        return Err(Problem::invalid(format!("reason is one of {}", DeadReason::KNOWN.join(", "))));
    }
    Ok(DlqFilter {
        event_type: filter.event_type.map(EventType::new).transpose()?,
        since: filter.since.map(|at| at.0),
        until: filter.until.map(|at| at.0),
        reason: filter.reason.map(|reason| reason.to_string()),
        text: filter.text,
        fingerprint: filter.fingerprint,
        subscription: filter.subscription.map(SubscriptionName::new).transpose()?,
    })
}

/// Maximum groups per response. The store returns one more if there are further groups.
const MAX_GROUPS: usize = 999;

/// List dead letters, newest first
///
/// Dead letters without payload and attempts; `getDeadLetter` has these. Every given filter must match.
#[utoipa::path(get, path = "/v1/dlq", tag = "dlq", security(("token" = ["read"])), params(dlq::DlqFilter, PageQuery),
    responses((status = 200, body = Page<DeadSummary>)))]
async fn list_dead_letters(
    State(api): ApiState,
    _: MayRead,
    Listed(filter, query): Listed<dlq::DlqFilter>,
) -> Reply {
    let limit = page::limit(&query)?;
    let after = page::dlq_cursor(query.after.as_deref())?;
    let page = DlqPage { offset: 0, limit: limit + 1, after };
    let found = api.store.dead_letter_summaries(into_filter(filter)?, page).await?;
    Ok(reply::ok(&page::page(found, limit, |dead| dead.cursor.to_string(), summary)))
}

/// Group dead letters by target and error fingerprint
///
/// The 999 largest groups; `has_more` says whether there are others.
#[utoipa::path(get, path = "/v1/dlq/groups", tag = "dlq", security(("token" = ["read"])), params(dlq::DlqFilter),
    responses((status = 200, body = DeadGroups)))]
async fn groups(State(api): ApiState, _: MayRead, Query(filter): Query<dlq::DlqFilter>) -> Reply {
    let groups = api.store.dead_groups(into_filter(filter)?).await?;
    let has_more = groups.len() > MAX_GROUPS;
    let data = groups.into_iter().take(MAX_GROUPS).map(group).collect();
    Ok(reply::ok(&DeadGroups { data, has_more }))
}

/// Show the dead letters of one event, with every failed attempt
///
/// One dead letter, or one for each subscription that is tracked on its own. An event on record that is not in the queue is answered with `not_dead`.
#[utoipa::path(get, path = "/v1/dlq/{id}", tag = "dlq", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The event")),
    responses((status = 200, body = List<dlq::DeadLetter>)))]
async fn show_dead_letter(State(api): ApiState, _: MayRead, Named(id): Named<EventId>) -> Reply {
    let entries = api.store.dead_letter(id).await?;
    Ok(reply::ok(&List { data: entries.into_iter().map(dead_letter).collect() }))
}

/// Longest age, in digits: of milliseconds, and of any other unit.
const MAX_MILLIS_DIGITS: usize = 12;
const MAX_AGE_DIGITS: usize = 5;

/// Delete old dead letters for good
///
/// Deletes dead letters of events that were published at least `older_than` ago. The deletion cannot be undone.
#[utoipa::path(delete, path = "/v1/dlq", tag = "dlq", security(("token" = ["admin"])), params(PurgeQuery),
    responses((status = 200, body = Purged)))]
async fn purge(State(api): ApiState, _: MayAdmin, Query(query): Query<PurgeQuery>) -> Reply {
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

fn summary<P>(dead: DeadLetter<P>) -> DeadSummary {
    DeadSummary {
        id: *dead.id.as_uuid(),
        event_type: dead.event_type.to_string(),
        subscription: dead.subscription.map(|name| name.to_string()),
        metadata: dead.metadata,
        retry_count: dead.retry_count,
        created_at: dead.created_at.into(),
        dlq_at: dead.dlq_at.into(),
        reason: dead.reason,
        errors: dead.errors,
    }
}

fn dead_letter(dead: DeadLetter) -> dlq::DeadLetter {
    dlq::DeadLetter {
        id: *dead.id.as_uuid(),
        event_type: dead.event_type.to_string(),
        subscription: dead.subscription.map(|name| name.to_string()),
        metadata: dead.metadata,
        retry_count: dead.retry_count,
        created_at: dead.created_at.into(),
        dlq_at: dead.dlq_at.into(),
        reason: dead.reason,
        errors: dead.errors,
        payload: dead.payload,
        attempts: dead.attempts.into_iter().map(attempt).collect(),
    }
}

fn group(group: DlqGroup) -> DeadGroup {
    DeadGroup {
        target: group.target.map(|name| name.to_string()),
        fingerprint: group.fingerprint,
        types: group.types.iter().map(ToString::to_string).collect(),
        count: group.count,
        example: group.example,
        example_id: *group.example_id.as_uuid(),
        first_at: group.first_at.into(),
        last_at: group.last_at.into(),
    }
}
