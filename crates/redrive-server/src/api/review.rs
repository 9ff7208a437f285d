//! `/v1/review`: the review queue of the retry scheduler. It is in the database, so every service on the database serves it.

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use redrive::EventId;
use redrive::dlq::DlqPage;
use redrive_api::page::{Page, PageQuery};
use redrive_api::review::{
    DecidedMessage, DiscardMessage, ManualDecision, MessagePayload, ReleaseMessage, ReviewDecision,
    ReviewFilter, ReviewSummary, ReviewTask, TaskHistory, UnreadableTask,
};
use redrive_api::time::Time;
use redrive_scheduler::{ByHand, HistoryEntry, InReview, Payload, Review, SchedulerError, TaskDetail};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayRead};
use super::body::{Listed, MaybeJson, Named};
use super::events::attempt;
use super::http_context::ServiceState;
use super::problem::{Code, Problem};
use super::{Reply, page, reply};

pub(crate) fn routes<S: ServiceState + Clone + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(discard))
}

/// The review queue of the service.
#[derive(Debug)]
pub(crate) struct ReviewQueue(Review);

impl<S: ServiceState> FromRequestParts<S> for ReviewQueue {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(ReviewQueue(state.review()))
    }
}

impl From<SchedulerError> for Problem {
    fn from(error: SchedulerError) -> Self {
        let said = error.to_string();
        match error {
            SchedulerError::Store(error) => error.into(),
            SchedulerError::Bus(error) => error.into(),
            SchedulerError::NoSuchTask { .. } => Problem::new(Code::NotFound, said),
            SchedulerError::NotInReview { .. } => Problem::new(Code::NotInReview, said),
            SchedulerError::NoQueue { .. } => Problem::invalid(said),
            _ => {
                tracing::error!(target: "redrive::http", error = said, "a retry task cannot be worked with");
                Problem::new(Code::Internal, said)
            }
        }
    }
}

/// List the messages in review, newest first
///
/// With a filter, a page before the last one may have fewer entries than `limit`.
#[utoipa::path(get, path = "/v1/review", operation_id = "list_review", tag = "review", security(("token" = ["read"])),
    params(ReviewFilter, PageQuery), responses((status = 200, body = Page<ReviewSummary>)))]
async fn list(
    ReviewQueue(review): ReviewQueue,
    _: MayRead,
    Listed(filter, query): Listed<ReviewFilter>,
) -> Reply {
    let (limit, after) = (page::limit(&query)?, page::dlq_cursor(query.after.as_deref())?);
    let found = review.list(&into_filter(filter)?, DlqPage { offset: 0, limit, after }).await?;
    let next = found.next.map(|cursor| cursor.to_string());
    Ok(reply::ok(&Page { data: found.tasks.into_iter().map(summary).collect(), next }))
}

/// Longest name of a queue in bytes, and longest text to search for in characters.
const MAX_QUEUE_BYTES: usize = 255;
const MAX_TEXT_CHARS: usize = 1000;

/// Converts a filter of the API into that of the scheduler.
fn into_filter(filter: ReviewFilter) -> Result<redrive_scheduler::ReviewFilter, Problem> {
    let ReviewFilter { from, error, since, until } = filter;
    if from.as_ref().is_some_and(|queue| queue.len() > MAX_QUEUE_BYTES) {
        return Err(Problem::invalid(format!("from has at most {MAX_QUEUE_BYTES} bytes")));
    }
    if error.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS) {
        return Err(Problem::invalid(format!("error has at most {MAX_TEXT_CHARS} characters")));
    }
    let (since, until) = (since.map(|at| at.0), until.map(|at| at.0));
    Ok(redrive_scheduler::ReviewFilter { queue: from, error, since, until })
}

/// Show one failed message with its history, in review or not
///
/// `history` has the failures of the message up to this one, `attempts` those of republishing it.
#[utoipa::path(get, path = "/v1/review/{id}", operation_id = "show_review", tag = "review", security(("token" = ["read"])),
    params(("id" = uuid::Uuid, Path, description = "The task")), responses((status = 200, body = ReviewTask)))]
async fn show(ReviewQueue(review): ReviewQueue, _: MayRead, Named(id): Named<EventId>) -> Reply {
    Ok(reply::ok(&task(review.show(id).await?)))
}

/// Longest reason, in characters.
const MAX_WHY_CHARS: usize = 1000;

/// Republish a message once more, to its queue or another one
///
/// A further failure returns the message to review. A message of unknown origin needs `queue`.
#[utoipa::path(post, path = "/v1/review/{id}/retry", operation_id = "retry_review", tag = "review",
    security(("token" = ["admin"])), params(("id" = uuid::Uuid, Path, description = "The task")),
    request_body = Option<ReleaseMessage>, responses((status = 202, body = DecidedMessage)))]
async fn retry(
    ReviewQueue(review): ReviewQueue,
    MayAdmin(caller): MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<ReleaseMessage>,
) -> Reply {
    review.retry(id, caller.name(), how.unwrap_or_default().queue).await?;
    Ok(decided(id, ReviewDecision::Released))
}

fn decided(id: EventId, decision: ReviewDecision) -> Response {
    reply::json(StatusCode::ACCEPTED, &DecidedMessage { id: *id.as_uuid(), decision })
}

/// Discard a message
///
/// The record of the message and of this decision is kept until the retention has passed.
#[utoipa::path(post, path = "/v1/review/{id}/discard", operation_id = "discard_review", tag = "review",
    security(("token" = ["admin"])), params(("id" = uuid::Uuid, Path, description = "The task")),
    request_body = Option<DiscardMessage>, responses((status = 202, body = DecidedMessage)))]
async fn discard(
    ReviewQueue(review): ReviewQueue,
    MayAdmin(caller): MayAdmin,
    Named(id): Named<EventId>,
    MaybeJson(how): MaybeJson<DiscardMessage>,
) -> Reply {
    let why = how.unwrap_or_default().why;
    if why.as_ref().is_some_and(|why| why.chars().count() > MAX_WHY_CHARS) {
        return Err(Problem::invalid(format!("why has at most {MAX_WHY_CHARS} characters")));
    }
    review.discard(id, caller.name(), why).await?;
    Ok(decided(id, ReviewDecision::Discarded))
}

fn summary(task: InReview) -> ReviewSummary {
    ReviewSummary {
        id: *task.id.as_uuid(),
        message_id: task.message_id,
        original_queue: task.original_queue,
        why: task.why,
        error_reason: task.error_reason,
        retry_count: task.retry_count,
        max_retries: task.max_retries,
        received_at: task.received_at.into(),
        reviewed_at: task.reviewed_at.into(),
    }
}

fn task(detail: TaskDetail) -> ReviewTask {
    let TaskDetail { id, status, in_review, due_at, task, unreadable, errors, attempts, history } = detail;
    let value = |value| serde_json::to_value(value).unwrap_or_default();
    ReviewTask {
        id: *id.as_uuid(),
        status: status.into(),
        in_review,
        message_id: task.message_id,
        original_payload: match task.original_payload {
            Payload::Text(text) => MessagePayload::Text(text),
            Payload::Base64(bytes) => MessagePayload::Base64(bytes),
        },
        original_queue: task.original_queue,
        error_reason: task.error_reason,
        retry_count: task.retry_count,
        max_retries: task.max_retries,
        due_at: due_at.filter(|_| status == "pending").map(Time),
        via: task.via.as_str().into(),
        problem: task.problem.map(|problem| serde_json::to_value(problem).unwrap_or_default()),
        received_at: task.received_at.into(),
        first_failed_at: task.first_failed_at.into(),
        properties: value(task.properties),
        by_hand: task.by_hand.map(decision),
        unreadable: unreadable.map(|stored| UnreadableTask { why: stored.why, payload: stored.payload }),
        errors,
        attempts: attempts.into_iter().map(attempt).collect(),
        history: history.into_iter().map(entry).collect(),
    }
}

fn entry(entry: HistoryEntry) -> TaskHistory {
    TaskHistory {
        task: *entry.task.as_uuid(),
        retry_count: entry.retry_count,
        received_at: entry.received_at.into(),
        error_reason: entry.error_reason,
        due_at: entry.due_at.into(),
        status: entry.status.into(),
        republished_at: entry.republished_at.map(Time),
        attempts: entry.attempts,
        errors: entry.errors,
        by_hand: entry.by_hand.map(decision),
    }
}

fn decision(by_hand: ByHand) -> ManualDecision {
    let ByHand { decision, by, why, at } = by_hand;
    ManualDecision { decision: decision.as_str().into(), by, why, at: at.into() }
}
