//! Extractors for the body, the query and the path of a request.

use std::str::FromStr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use redrive_api::page::PageQuery;
use redrive_retry::duration::format_duration;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::auth::Caller;
use super::body_memory::BodyReservation;
use super::http_context::{HttpContext, ServiceState};
use super::objects_only::ObjectsOnly;
use super::problem::{Code, Problem};

/// Time that one request waits in total for body memory.
const BODY_MEMORY_TIMEOUT: Duration = Duration::from_secs(10);

/// Rate at which a body must arrive, after a grace period: a client that drips its body holds memory and a connection.
const MIN_BODY_BYTES_PER_SECOND: u64 = 16 << 10;
const BODY_GRACE: Duration = Duration::from_secs(5);

/// Bytes of a refused body that are read and dropped, and for how long: a client that is cut off while it sends does not read the
/// answer.
const MAX_DROPPED_BYTES: usize = 64 << 20;
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest body with settings or filters.
pub(crate) const MAX_SMALL_BYTES: usize = 64 << 10;

/// JSON body of at most `LIMIT` bytes.
#[derive(Debug)]
pub(crate) struct Json<T, const LIMIT: usize = MAX_SMALL_BYTES>(pub(crate) T);

impl<T: DeserializeOwned, S: ServiceState, const LIMIT: usize> FromRequest<S> for Json<T, LIMIT> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        must_be_json(request.headers())?;
        let (_reservation, bytes) = read(request, state.http(), LIMIT).await?;
        parse(&bytes).map(Json)
    }
}

/// Optional JSON body.
#[derive(Debug)]
pub(crate) struct MaybeJson<T, const LIMIT: usize = MAX_SMALL_BYTES>(pub(crate) Option<T>);

impl<T: DeserializeOwned, S: ServiceState, const LIMIT: usize> FromRequest<S> for MaybeJson<T, LIMIT> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let (_reservation, bytes) = read(request, state.http(), LIMIT).await?;
        match bytes.is_empty() {
            true => Ok(MaybeJson(None)),
            false if is_json => parse(&bytes).map(|body| MaybeJson(Some(body))),
            false => Err(wrong_type("content-type: application/json")),
        }
    }
}

/// The query. An unknown name is an error, so that a mistyped filter does not select everything.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        serde_urlencoded::from_str(query).map(Query).map_err(|error| no_query(&error))
    }
}

/// Filter and page of a list: `limit` and `after` select the page, every other parameter belongs to the filter.
#[derive(Debug)]
pub(crate) struct Listed<F>(pub(crate) F, pub(crate) PageQuery);

impl<F: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Listed<F> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs: Vec<(String, String)> =
            serde_urlencoded::from_str(query).map_err(|error| no_query(&error))?;
        let (page, filter): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| matches!(name.as_str(), "limit" | "after"));
        Ok(Listed(from_pairs(&filter)?, from_pairs(&page)?))
    }
}

fn from_pairs<T: DeserializeOwned>(pairs: &[(String, String)]) -> Result<T, Problem> {
    let text = serde_urlencoded::to_string(pairs).map_err(|error| no_query(&error))?;
    serde_urlencoded::from_str(&text).map_err(|error| no_query(&error))
}

fn no_query(why: &dyn std::fmt::Display) -> Problem {
    Problem::invalid(format!("the query cannot be read: {why}"))
}

/// The path parameter, parsed.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<T: FromStr<Err: std::fmt::Display>, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = axum::extract::Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| Problem::invalid(format!("the path cannot be read: {rejection}")))?;
        text.parse().map(Named).map_err(Problem::invalid)
    }
}

/// Reads the whole body, and reserves memory for it as it arrives.
pub(crate) async fn read(
    request: Request,
    http: &HttpContext,
    limit: usize,
) -> Result<(BodyReservation<'_>, Vec<u8>), Problem> {
    let too_large = || {
        Problem::new(
            Code::TooLarge,
            format!("a body of more than {limit} bytes is not read: send less at once"),
        )
    };
    let length = header_number(request.headers());
    let mut reserved = http.limits.bodies.reserve(request.extensions().get().map_or("", Caller::name));
    let mut body = request.into_body();
    if length.is_some_and(|length| length > limit as u64) {
        let _ = tokio::time::timeout(DROP_TIMEOUT, drop_body(body)).await;
        return Err(too_large());
    }
    let (mut memory_timeout, mut bytes, mut start) = (BODY_MEMORY_TIMEOUT, Vec::new(), Instant::now());
    loop {
        let time = time_for(bytes.len()).min(http.limits.body_timeout);
        let frame = tokio::time::timeout_at(start + time, body.frame()).await.map_err(|_| {
            let (got, within) = (bytes.len(), format_duration(time));
            Problem::new(
                Code::RequestTimeout,
                format!("only {got} bytes of the body arrived within {within}: send it faster"),
            )
        })?;
        let Some(frame) = frame else { return Ok((reserved, bytes)) };
        let frame = frame.map_err(|error| Problem::invalid(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue }; // trailers
        if data.len() > limit - bytes.len() {
            return Err(too_large());
        }
        let began = Instant::now();
        if tokio::time::timeout(memory_timeout, reserved.grow_to(bytes.len() + data.len())).await.is_err() {
            // Another request may wait for the memory that this one has reserved.
            drop((reserved, bytes, data));
            let _ = tokio::time::timeout(DROP_TIMEOUT, drop_body(body)).await;
            let say = "too many large requests are being read: send it again later";
            return Err(Problem::new(Code::Unavailable, say).after(Duration::from_secs(5)));
        }
        // The timeout covers all waits together, and the client is not charged for them.
        memory_timeout = memory_timeout.saturating_sub(began.elapsed());
        start += began.elapsed();
        bytes.extend_from_slice(&data);
    }
}

/// Time in which a body must have begun to send more than these bytes.
fn time_for(bytes: usize) -> Duration {
    BODY_GRACE + Duration::from_millis(bytes as u64 * 1000 / MIN_BODY_BYTES_PER_SECOND)
}

async fn drop_body(mut body: Body) {
    let mut dropped = 0;
    while let Some(Ok(frame)) = body.frame().await {
        dropped += frame.data_ref().map_or(0, Bytes::len);
        if dropped > MAX_DROPPED_BYTES {
            return;
        }
    }
}

fn header_number(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The media type of the body, without its parameters and in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let whole = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    whole.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

pub(crate) fn must_be_json(headers: &HeaderMap) -> Result<(), Problem> {
    if is_json(headers) { Ok(()) } else { Err(wrong_type("content-type: application/json")) }
}

fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers) == "application/json"
}

pub(crate) fn wrong_type(use_this: &str) -> Problem {
    Problem::new(Code::UnsupportedMediaType, format!("say what the body is: send the header `{use_this}`"))
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    from_json(bytes).map_err(|error| Problem::invalid(unreadable(&error)))
}

/// Reads a JSON text, in which every structure is an object.
pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(ObjectsOnly(&mut reader))?;
    reader.end()?;
    Ok(value)
}

/// Says why a JSON text cannot be read, and where.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Data => format!("the JSON is not what is expected: {error}"),
        _ => format!("the body is not JSON: {error}"),
    }
}
