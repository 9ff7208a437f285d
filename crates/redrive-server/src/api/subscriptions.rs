//! `/v1/subscriptions`: events that are fetched, in any language.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use redrive::{Metadata, Patterns, RetryPolicy};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::auth::{MayAdmin, MayConsume, MayRead};
use super::body::{Json, MaybeJson, Named, Query};
use super::page::{self, Page};
use super::problem::{Code, Problem};
use super::retry::Retry;
use super::time::Instant;
use super::{Api, Routes, reply};
use crate::queues::QueueError;
use crate::queues::lease::LeaseName;
use crate::queues::stored::{Body, MOST, Queue, QueueName};

/// How long a lease is if nobody says so, and may be.
const USUAL_LEASE: u64 = 30_000;
const LEASE: std::ops::RangeInclusive<u64> = 100..=12 * 3_600_000;

/// How many are fetched at once, and how long is waited for the first.
const MOST_AT_ONCE: usize = 100;
const LONGEST_WAIT: u64 = 30_000;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list))
        .routes(routes!(show, put, remove))
        .routes(routes!(pull))
        .routes(routes!(ack))
        .routes(routes!(nack))
        .routes(routes!(extend))
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::NotFound(_) => Problem::new(Code::NotFound, error.to_string()),
            QueueError::Unreadable { .. } => Problem::new(Code::Internal, error.to_string()),
            QueueError::Bus(error) => error.into(),
            QueueError::Store(error) => error.into(),
        }
    }
}

/// A subscription to fetch from.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PutSubscription {
    /// Which events it wants: an event type, or a pattern in which `*` stands for one or more characters.
    #[schema(min_items = 1, max_items = 100, example = json!(["order.*"]))]
    patterns: Vec<String>,
    /// How long a lease is if nobody says so when fetching; 30 s if nothing is said.
    #[schema(minimum = 100, maximum = 43_200_000)]
    lease_ms: Option<u64>,
    /// What is not as in the policy of the server.
    retry: Option<Retry>,
}

/// A subscription to fetch from.
#[derive(Debug, Serialize, ToSchema)]
struct SubscriptionView {
    name: String,
    patterns: Vec<String>,
    lease_ms: u64,
    retry: Option<Retry>,
    created_at: Instant,
    updated_at: Instant,
}

impl From<Queue> for SubscriptionView {
    fn from(queue: Queue) -> Self {
        SubscriptionView {
            name: queue.name.to_string(),
            patterns: queue.body.patterns,
            lease_ms: queue.body.lease_ms,
            retry: queue.body.retry.map(Retry::from),
            created_at: queue.created_at.into(),
            updated_at: queue.updated_at.into(),
        }
    }
}

fn lease_of(asked: Option<u64>, usual: Duration) -> Result<Duration, Problem> {
    match asked {
        None => Ok(usual),
        Some(millis) if LEASE.contains(&millis) => Ok(Duration::from_millis(millis)),
        Some(_) => Err(Problem::invalid(format!("lease_ms is from {} to {}", LEASE.start(), LEASE.end()))),
    }
}

/// Make a subscription to fetch from, or change it
///
/// It is owed what is published from now on.
#[utoipa::path(put, path = "/v1/subscriptions/{name}", tag = "subscriptions", security(("token" = ["admin"])),
    params(("name" = String, Path, description = "What it is called", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = PutSubscription, responses((status = 200, body = SubscriptionView)))]
async fn put(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(name): Named<QueueName>,
    Json(wanted): Json<PutSubscription>,
) -> Result<Response, Problem> {
    for pattern in &wanted.patterns {
        pattern.parse::<redrive::Pattern>().map_err(|error| Problem::invalid(error.to_string()))?;
    }
    wanted.patterns.join(" ").parse::<Patterns>().map_err(|error| Problem::invalid(error.to_string()))?;
    let retry = wanted.retry.map(Retry::into_override).transpose()?;
    if let Some(retry) = &retry {
        retry.apply_to(&RetryPolicy::webhook()).map_err(|error| Problem::invalid(error.to_string()))?;
    }
    let lease = lease_of(wanted.lease_ms, Duration::from_millis(USUAL_LEASE))?;
    let is_new = match Queue::read(api.store.as_ref(), &name).await {
        Ok(before) => before.is_none_or(|before| before.body.is_removed),
        Err(_) => false, // one that cannot be read is there, and is mended by this
    };
    if is_new && Queue::count(api.store.as_ref()).await? >= MOST {
        return Err(Problem::new(
            Code::Conflict,
            format!("there are {MOST} subscriptions already: remove one"),
        ));
    }
    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    let body = Body { patterns: wanted.patterns, lease_ms, retry, is_removed: false };
    let queue = Queue::put(api.store.as_ref(), name, &body).await?;
    api.queues.put_in_force(&queue).await?;
    Ok(reply::ok(&SubscriptionView::from(queue)))
}

/// Which part of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubscriptionsQuery {
    /// How many at most
    #[param(minimum = 1, maximum = 200, default = 100)]
    limit: Option<u32>,
    /// Continue after this cursor: the `next` of the page before
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9_-]{1,64}$")]
    after: Option<String>,
}

/// List the subscriptions to fetch from
#[utoipa::path(get, path = "/v1/subscriptions", tag = "subscriptions", security(("token" = ["read"])),
    params(SubscriptionsQuery), responses((status = 200, body = Page<SubscriptionView>)))]
async fn list(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Query(query): Query<SubscriptionsQuery>,
) -> Result<Response, Problem> {
    let limit = page::limit(query.limit)?;
    let after: Option<QueueName> =
        query.after.as_deref().map(str::parse).transpose().map_err(Problem::invalid)?;
    let found = Queue::list(api.store.as_ref(), after.as_ref(), limit + 1).await?;
    Ok(reply::ok(&Page::of(found, limit, |queue| queue.name.to_string(), SubscriptionView::from)))
}

/// Show one subscription
#[utoipa::path(get, path = "/v1/subscriptions/{name}", tag = "subscriptions", security(("token" = ["read"])),
    params(("name" = String, Path, description = "What it is called", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    responses((status = 200, body = SubscriptionView)))]
async fn show(
    State(api): State<Arc<Api>>,
    _: MayRead,
    Named(name): Named<QueueName>,
) -> Result<Response, Problem> {
    let queue = Queue::read(api.store.as_ref(), &name).await?.filter(|queue| !queue.body.is_removed);
    let queue = queue.ok_or_else(|| QueueError::NotFound(name))?;
    Ok(reply::ok(&SubscriptionView::from(queue)))
}

/// Remove a subscription
///
/// What it is still owed goes to the dead-letter queue, with that as the reason.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}", tag = "subscriptions", security(("token" = ["admin"])),
    params(("name" = String, Path, description = "What it is called", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    responses((status = 204, description = "It is gone")))]
async fn remove(
    State(api): State<Arc<Api>>,
    _: MayAdmin,
    Named(name): Named<QueueName>,
) -> Result<Response, Problem> {
    let queue = Queue::read(api.store.as_ref(), &name).await?.filter(|queue| !queue.body.is_removed);
    let queue = queue.ok_or_else(|| QueueError::NotFound(name.clone()))?;
    let queue = Queue::put(api.store.as_ref(), name, &Body { is_removed: true, ..queue.body }).await?;
    api.queues.put_in_force(&queue).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What is to be fetched.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Pull {
    /// How many at most; 10 if nothing is said.
    #[schema(minimum = 1, maximum = 100)]
    max: Option<usize>,
    /// How long to wait for the first one; not at all if nothing is said.
    #[schema(minimum = 0, maximum = 30_000)]
    wait_ms: Option<u64>,
    /// How long each is leased; as long as the subscription says if nothing is said.
    #[schema(minimum = 100, maximum = 43_200_000)]
    lease_ms: Option<u64>,
}

/// What was fetched.
#[derive(Debug, Serialize, ToSchema)]
struct Pulled {
    data: Vec<LeasedView>,
}

/// An event that was fetched. Until its lease ends it is given to nobody else.
#[derive(Debug, Serialize, ToSchema)]
struct LeasedView {
    /// To acknowledge it, to refuse it, or to keep it longer.
    lease: String,
    leased_until: Instant,
    #[schema(value_type = uuid::Uuid)]
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    metadata: Metadata,
    created_at: Instant,
    /// Which attempt this is, counted from 1.
    attempt: u32,
    max_attempts: u32,
}

/// Fetch events, each under a lease
///
/// What is neither acknowledged nor refused before its lease ends is given out again, as another attempt.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/pull", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Option<Pull>, responses((status = 200, body = Pulled)))]
async fn pull(
    State(api): State<Arc<Api>>,
    _: MayConsume,
    Named(name): Named<QueueName>,
    MaybeJson(wanted): MaybeJson<Pull>,
) -> Result<Response, Problem> {
    let Pull { max, wait_ms, lease_ms } = wanted.unwrap_or_default();
    let max = max.unwrap_or(10);
    if !(1..=MOST_AT_ONCE).contains(&max) {
        return Err(Problem::invalid(format!("max is from 1 to {MOST_AT_ONCE}")));
    }
    let wait = wait_ms.unwrap_or(0);
    if wait > LONGEST_WAIT {
        return Err(Problem::invalid(format!("wait_ms is from 0 to {LONGEST_WAIT}")));
    }
    let (queue, usual) = api.queues.find(&name).await?;
    let lease = lease_of(lease_ms, usual)?;
    // What is on disk takes a moment, also for whoever does not want to wait.
    let wait = Duration::from_millis(wait.max(50));
    let mut stopping = api.door.stopping.clone();
    let leased = tokio::select! {
        leased = queue.pull(max, lease, wait) => leased,
        _ = stopping.wait_for(|is_stopping| *is_stopping) => Vec::new(),
    };
    let view = |one: redrive::Leased| LeasedView {
        lease: LeaseName { instance: api.queues.instance, token: one.token }.to_string(),
        leased_until: one.until.into(),
        id: one.event.id().to_string(),
        event_type: one.event.event_type().to_string(),
        payload: RawValue::from_string(one.event.payload().to_owned())
            .unwrap_or_else(|_| RawValue::NULL.to_owned()),
        metadata: one.event.metadata().clone(),
        created_at: one.event.created_at().into(),
        attempt: one.event.attempt(),
        max_attempts: one.event.max_attempts(),
    };
    Ok(reply::ok(&Pulled { data: leased.into_iter().map(view).collect() }))
}

/// Leases that are to be ended.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Ack {
    /// As they came with the events.
    #[schema(min_items = 1, max_items = 100)]
    leases: Vec<String>,
}

/// Leases of events that could not be handled.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Nack {
    /// As they came with the events.
    #[schema(min_items = 1, max_items = 100)]
    leases: Vec<String>,
    /// They are not given out again before this much time has passed; by itself their policy says when.
    #[schema(minimum = 0, maximum = 86_400_000)]
    delay_ms: Option<u64>,
    /// Why. It is kept with the attempt.
    #[schema(max_length = 4096)]
    reason: Option<String>,
}

/// Leases that are to be kept longer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Extend {
    /// As they came with the events.
    #[schema(min_items = 1, max_items = 100)]
    leases: Vec<String>,
    /// How long from now on.
    #[schema(minimum = 100, maximum = 43_200_000)]
    lease_ms: u64,
}

/// What became of leases.
#[derive(Debug, Serialize, ToSchema)]
struct Ended {
    /// How many it was done for.
    done: usize,
    /// Those that had ended before, and those of another server: their events are given out again, or were.
    lost: Vec<String>,
}

/// Does something with each of these leases.
fn for_each(
    api: &Api,
    leases: Vec<String>,
    mut act: impl FnMut(redrive::LeaseToken) -> Result<(), redrive::LeaseLost>,
) -> Result<Response, Problem> {
    if !(1..=MOST_AT_ONCE).contains(&leases.len()) {
        return Err(Problem::invalid(format!("give 1 to {MOST_AT_ONCE} leases")));
    }
    // All of them are looked at before anything is done.
    let named: Vec<LeaseName> =
        leases.iter().map(|lease| lease.parse()).collect::<Result<_, _>>().map_err(Problem::invalid)?;
    let is_ours = |lease: &LeaseName| lease.instance == api.queues.instance;
    // Among leases of our own, one from before a restart keeps nobody from ending the rest.
    if !named.iter().any(is_ours) {
        return Err(Problem::new(
            Code::Misdirected,
            "another server has given these leases out, or this one before it was started anew: tell the one that gave them, or let them end",
        ));
    }
    let mut lost = Vec::new();
    for (lease, text) in named.iter().zip(leases) {
        if !is_ours(lease) || act(lease.token).is_err() {
            lost.push(text);
        }
    }
    Ok(reply::ok(&Ended { done: named.len() - lost.len(), lost }))
}

/// Say that events are handled
#[utoipa::path(post, path = "/v1/subscriptions/{name}/ack", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Ack, responses((status = 200, body = Ended)))]
async fn ack(
    State(api): State<Arc<Api>>,
    _: MayConsume,
    Named(name): Named<QueueName>,
    Json(wanted): Json<Ack>,
) -> Result<Response, Problem> {
    let (queue, _) = api.queues.find(&name).await?;
    for_each(&api, wanted.leases, |token| queue.ack(token))
}

/// Say that events could not be handled
#[utoipa::path(post, path = "/v1/subscriptions/{name}/nack", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Nack, responses((status = 200, body = Ended)))]
async fn nack(
    State(api): State<Arc<Api>>,
    _: MayConsume,
    Named(name): Named<QueueName>,
    Json(wanted): Json<Nack>,
) -> Result<Response, Problem> {
    let Nack { leases, delay_ms, reason } = wanted;
    if delay_ms.is_some_and(|delay| delay > 86_400_000) {
        return Err(Problem::invalid("delay_ms is from 0 to 86400000"));
    }
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > 4096) {
        return Err(Problem::invalid("reason is at most 4096 characters long"));
    }
    let (queue, _) = api.queues.find(&name).await?;
    for_each(&api, leases, |token| queue.nack(token, delay_ms.map(Duration::from_millis), reason.clone()))
}

/// Keep events longer
#[utoipa::path(post, path = "/v1/subscriptions/{name}/extend", tag = "subscriptions", security(("token" = ["consume"])),
    params(("name" = String, Path, description = "The subscription", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Extend, responses((status = 200, body = Ended)))]
async fn extend(
    State(api): State<Arc<Api>>,
    _: MayConsume,
    Named(name): Named<QueueName>,
    Json(wanted): Json<Extend>,
) -> Result<Response, Problem> {
    let (queue, usual) = api.queues.find(&name).await?;
    let lease = lease_of(Some(wanted.lease_ms), usual)?;
    for_each(&api, wanted.leases, |token| queue.extend(token, lease).map(drop))
}
