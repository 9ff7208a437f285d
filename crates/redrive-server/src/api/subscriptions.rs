//! `/v1/subscriptions`: pull consumers.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use redrive::pull::{LeaseEnd, LeaseLost, LeaseToken, PullRequest};
use redrive::retry::RetryPolicy;
use redrive::subscription::{Pattern, Patterns};
use redrive_api::page::{List, Page, PageQuery};
use redrive_api::subscriptions::{
    Ack, Extend, LeaseResults, LeasedEvent, Nack, NackOutcome, Pull, PutSubscription, Subscription,
};
use serde_json::value::RawValue;
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayConsume, MayRead};
use super::body::{Json, MaybeJson, Named, Query};
use super::problem::{Code, Problem};
use super::{ApiState, Reply, Routes, page, reply, retry};
use crate::pull_subscriptions::PullSubscriptionError;
use crate::pull_subscriptions::stored::{
    Body, MAX_PULL_SUBSCRIPTIONS, PullSubscription, PullSubscriptionName,
};

/// Default length of a lease.
const DEFAULT_LEASE_MS: u64 = 30_000;

/// Allowed lengths of a lease.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=12 * 3_600_000;

/// Maximum number of events of one pull, and of leases of one request.
const MAX_EVENTS: usize = 100;

/// Maximum wait of a pull for the first event.
const MAX_WAIT_MS: u64 = 30_000;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list_subscriptions))
        .routes(routes!(show_subscription, put_subscription, remove_subscription))
        .routes(routes!(pull))
        .routes(routes!(ack))
        .routes(routes!(nack))
        .routes(routes!(extend))
}

impl From<PullSubscriptionError> for Problem {
    fn from(error: PullSubscriptionError) -> Self {
        match error {
            PullSubscriptionError::NotFound(_) => Problem::new(Code::NotFound, error.to_string()),
            PullSubscriptionError::Unreadable { .. } => Problem::new(Code::Internal, error.to_string()),
            PullSubscriptionError::Bus(error) => error.into(),
            PullSubscriptionError::Store(error) => error.into(),
        }
    }
}

fn view(subscription: PullSubscription) -> Subscription {
    Subscription {
        name: subscription.name.to_string(),
        patterns: subscription.body.patterns,
        lease_ms: subscription.body.lease_ms,
        retry: subscription.body.retry.map(retry::view),
        created_at: subscription.created_at.into(),
        updated_at: subscription.updated_at.into(),
    }
}

fn lease_of(asked: Option<u64>, usual: Duration) -> Result<Duration, Problem> {
    match asked {
        None => Ok(usual),
        Some(millis) if LEASE_MS.contains(&millis) => Ok(Duration::from_millis(millis)),
        Some(_) => {
            Err(Problem::invalid(format!("lease_ms is from {} to {}", LEASE_MS.start(), LEASE_MS.end())))
        }
    }
}

/// Create or change a pull subscription
///
/// The subscription receives events published after this call.
#[utoipa::path(put, path = "/v1/subscriptions/{name}", tag = "subscriptions", security(("token" = ["admin"])),
    params(("name" = String, Path, description = "The name of the subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = PutSubscription, responses((status = 200, body = Subscription)))]
async fn put_subscription(
    State(api): ApiState,
    _: MayAdmin,
    Named(name): Named<PullSubscriptionName>,
    Json(wanted): Json<PutSubscription>,
) -> Reply {
    for pattern in &wanted.patterns {
        pattern.parse::<Pattern>().map_err(Problem::invalid)?;
    }
    wanted.patterns.join(" ").parse::<Patterns>().map_err(Problem::invalid)?;
    let retry = wanted.retry.map(retry::into_override).transpose()?;
    if let Some(retry) = &retry {
        retry.apply_to(&RetryPolicy::webhook()).map_err(Problem::invalid)?;
    }
    let lease = lease_of(wanted.lease_ms, Duration::from_millis(DEFAULT_LEASE_MS))?;
    let is_new = match PullSubscription::read(api.store.as_ref(), &name).await {
        Ok(before) => before.is_none_or(|before| before.body.is_removed),
        Err(_) => false, // an unreadable one exists, and this replaces it
    };
    if is_new && PullSubscription::count(api.store.as_ref()).await? >= MAX_PULL_SUBSCRIPTIONS {
        return Err(Problem::new(
            Code::Conflict,
            format!("there are {MAX_PULL_SUBSCRIPTIONS} subscriptions already: remove one"),
        ));
    }
    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    let body = Body { patterns: wanted.patterns, lease_ms, retry, is_removed: false };
    let subscription = PullSubscription::put(api.store.as_ref(), &name, &body).await?;
    api.pull_subscriptions.register(&subscription).await?;
    Ok(reply::ok(&view(subscription)))
}

/// List pull subscriptions
#[utoipa::path(get, path = "/v1/subscriptions", tag = "subscriptions", security(("token" = ["read"])),
    params(PageQuery), responses((status = 200, body = Page<Subscription>)))]
async fn list_subscriptions(State(api): ApiState, _: MayRead, Query(query): Query<PageQuery>) -> Reply {
    let limit = page::limit(&query)?;
    let after: Option<PullSubscriptionName> =
        query.after.as_deref().map(str::parse).transpose().map_err(Problem::invalid)?;
    let found = PullSubscription::list(api.store.as_ref(), after.as_ref(), limit + 1).await?;
    Ok(reply::ok(&page::page(found, limit, |subscription| subscription.name.to_string(), view)))
}

/// Show one subscription
#[utoipa::path(get, path = "/v1/subscriptions/{name}", tag = "subscriptions", security(("token" = ["read"])),
    params(("name" = String, Path, description = "The name of the subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    responses((status = 200, body = Subscription)))]
async fn show_subscription(
    State(api): ApiState,
    _: MayRead,
    Named(name): Named<PullSubscriptionName>,
) -> Reply {
    let subscription = PullSubscription::read(api.store.as_ref(), &name)
        .await?
        .filter(|subscription| !subscription.body.is_removed);
    let subscription = subscription.ok_or_else(|| PullSubscriptionError::NotFound(name))?;
    Ok(reply::ok(&view(subscription)))
}

/// Remove a subscription
///
/// The subscription's open deliveries are dead-lettered; their error says that the subscription was removed.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}", tag = "subscriptions", security(("token" = ["admin"])),
    params(("name" = String, Path, description = "The name of the subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    responses((status = 204, description = "Removed")))]
async fn remove_subscription(
    State(api): ApiState,
    _: MayAdmin,
    Named(name): Named<PullSubscriptionName>,
) -> Reply {
    let subscription = PullSubscription::read(api.store.as_ref(), &name)
        .await?
        .filter(|subscription| !subscription.body.is_removed);
    let subscription = subscription.ok_or_else(|| PullSubscriptionError::NotFound(name.clone()))?;
    let subscription =
        PullSubscription::put(api.store.as_ref(), &name, &Body { is_removed: true, ..subscription.body })
            .await?;
    api.pull_subscriptions.register(&subscription).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Pull events, each under a lease
///
/// An event whose lease ends without ack or nack is delivered again, as another attempt.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/pull", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Option<Pull>, responses((status = 200, body = List<LeasedEvent>)))]
async fn pull(
    State(api): ApiState,
    MayConsume(caller): MayConsume,
    Named(name): Named<PullSubscriptionName>,
    MaybeJson(wanted): MaybeJson<Pull>,
) -> Reply {
    let Pull { max, wait_ms, lease_ms } = wanted.unwrap_or_default();
    let max = max.unwrap_or(10);
    if !(1..=MAX_EVENTS).contains(&max) {
        return Err(Problem::invalid(format!("max is from 1 to {MAX_EVENTS}")));
    }
    let wait = wait_ms.unwrap_or(0);
    if wait > MAX_WAIT_MS {
        return Err(Problem::invalid(format!("wait_ms is from 0 to {MAX_WAIT_MS}")));
    }
    let (queue, usual) = api.pull_subscriptions.find(&name).await?;
    let lease = lease_of(lease_ms, usual)?;
    // Reading from disk takes a moment, also without a wait.
    let wait = Duration::from_millis(wait.max(50));
    let mut stopping = api.http.stopping.clone();
    let leased = tokio::select! {
        leased = queue.pull(PullRequest { limit: max, lease, wait }) => leased,
        _ = stopping.wait_for(|is_stopping| *is_stopping) => Vec::new(),
        () = caller.ended(&api.http) => Vec::new(),
    };
    // Checked after the wait: a caller whose token has ended meanwhile gets nothing.
    if !caller.is_still_valid(&api.http).await {
        queue.end_all(leased.iter().map(|one| one.token).collect(), LeaseEnd::Release).await?;
        let say = "the token was revoked or has expired while the request waited: ask for a new one";
        return Err(Problem::new(Code::InvalidToken, say));
    }
    let view = |one: redrive::pull::Leased| LeasedEvent {
        lease: one.token.to_string(),
        leased_until: one.until.into(),
        id: *one.event.id().as_uuid(),
        event_type: one.event.event_type().to_string(),
        payload: RawValue::from_string(one.event.payload().to_owned())
            .unwrap_or_else(|_| RawValue::NULL.to_owned()),
        metadata: one.event.metadata().clone(),
        created_at: one.event.created_at().into(),
        attempt: one.event.attempt(),
        max_attempts: one.event.max_attempts(),
    };
    Ok(reply::ok(&List { data: leased.into_iter().map(view).collect() }))
}

/// Reads the leases of a request.
fn tokens(leases: &[String]) -> Result<Vec<LeaseToken>, Problem> {
    if !(1..=MAX_EVENTS).contains(&leases.len()) {
        return Err(Problem::invalid(format!("give 1 to {MAX_EVENTS} leases")));
    }
    let token = |lease: &String| {
        lease.parse().map_err(|_| {
            let lease: String = lease.chars().take(40).collect();
            Problem::invalid(format!("{lease:?} is not a lease: pass on the `lease` of the event"))
        })
    };
    leases.iter().map(token).collect()
}

/// The answer to an ack, a nack or an extension: which leases were lost before.
fn results<T>(leases: Vec<String>, ended: Vec<Result<T, LeaseLost>>) -> Reply {
    let count = leases.len();
    let lost: Vec<String> =
        leases.into_iter().zip(ended).filter_map(|(lease, ended)| ended.is_err().then_some(lease)).collect();
    Ok(reply::ok(&LeaseResults { done: count - lost.len(), lost }))
}

/// Ack: settle events as handled
#[utoipa::path(post, path = "/v1/subscriptions/{name}/ack", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Ack, responses((status = 200, body = LeaseResults)))]
async fn ack(
    State(api): ApiState,
    _: MayConsume,
    Named(name): Named<PullSubscriptionName>,
    Json(wanted): Json<Ack>,
) -> Reply {
    let (tokens, (queue, _)) = (tokens(&wanted.leases)?, api.pull_subscriptions.find_leases(&name).await?);
    results(wanted.leases, queue.end_all(tokens, LeaseEnd::Ack).await?)
}

/// Nack: settle events as failed, give them back for later, or end them
#[utoipa::path(post, path = "/v1/subscriptions/{name}/nack", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Nack, responses((status = 200, body = LeaseResults)))]
async fn nack(
    State(api): ApiState,
    _: MayConsume,
    Named(name): Named<PullSubscriptionName>,
    Json(wanted): Json<Nack>,
) -> Reply {
    let Nack { leases, outcome, delay_ms, reason } = wanted;
    if delay_ms.is_some_and(|delay| delay > 86_400_000) {
        return Err(Problem::invalid("delay_ms is from 0 to 86400000"));
    }
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > 4096) {
        return Err(Problem::invalid("reason is at most 4096 characters long"));
    }
    let delay = delay_ms.map(Duration::from_millis);
    let end = match (outcome.unwrap_or(NackOutcome::Failed), delay) {
        (NackOutcome::Failed, delay) => LeaseEnd::Nack { delay, reason },
        (NackOutcome::Snooze, Some(delay)) => LeaseEnd::Snooze(delay),
        (NackOutcome::Snooze, None) => {
            return Err(Problem::invalid("a snooze needs delay_ms: the wait before the next delivery"));
        }
        (NackOutcome::Permanent, None) => LeaseEnd::Reject { reason },
        (NackOutcome::Permanent, Some(_)) => {
            return Err(Problem::invalid(
                "a permanent failure has no delay_ms: leave it out, or use the outcome failed",
            ));
        }
        (NackOutcome::Other(other), _) => {
            let other: String = other.chars().take(40).collect();
            return Err(Problem::invalid(format!(
                "{other:?} is no outcome: use failed, snooze or permanent"
            )));
        }
    };
    let (tokens, (queue, _)) = (tokens(&leases)?, api.pull_subscriptions.find_leases(&name).await?);
    results(leases, queue.end_all(tokens, end).await?)
}

/// Extend leases
#[utoipa::path(post, path = "/v1/subscriptions/{name}/extend", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Extend, responses((status = 200, body = LeaseResults)))]
async fn extend(
    State(api): ApiState,
    _: MayConsume,
    Named(name): Named<PullSubscriptionName>,
    Json(wanted): Json<Extend>,
) -> Reply {
    let (queue, usual) = api.pull_subscriptions.find_leases(&name).await?;
    let lease = lease_of(Some(wanted.lease_ms), usual)?;
    let tokens = tokens(&wanted.leases)?;
    results(wanted.leases, queue.extend_all(tokens, lease).await?)
}
