//! Reading what a request says: its body, its query, its path. Whatever cannot be read is a problem that says so.

use std::str::FromStr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use redrive_retry::format_duration;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::door::{BehindDoor, Door};
use super::limits::BodyRoom;
use super::problem::{Code, Problem};

/// How long a request waits in all for others to be read, if there are too many at once.
const WAITS_FOR_ROOM: Duration = Duration::from_secs(10);

/// How much of what is too large is read and dropped, and for how long: a client that is cut off while it sends does not read
/// the answer that says why.
const DROPPED: usize = 64 << 20;
const LINGERS: Duration = Duration::from_secs(5);

/// A small body: settings and filters.
pub(crate) const SMALL: usize = 64 << 10;

/// A JSON body of at most so many bytes.
#[derive(Debug)]
pub(crate) struct Json<T, const LIMIT: usize = SMALL>(pub(crate) T);

impl<T: DeserializeOwned, S: BehindDoor, const LIMIT: usize> FromRequest<S> for Json<T, LIMIT> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        must_be_json(request.headers())?;
        let (_room, bytes) = read(request, state.door(), LIMIT).await?;
        parse(&bytes).map(Json)
    }
}

/// The same, or no body at all.
#[derive(Debug)]
pub(crate) struct MaybeJson<T, const LIMIT: usize = SMALL>(pub(crate) Option<T>);

impl<T: DeserializeOwned, S: BehindDoor, const LIMIT: usize> FromRequest<S> for MaybeJson<T, LIMIT> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let (_room, bytes) = read(request, state.door(), LIMIT).await?;
        match bytes.is_empty() {
            true => Ok(MaybeJson(None)),
            false if is_json => parse(&bytes).map(MaybeJson),
            false => Err(wrong_type("content-type: application/json")),
        }
    }
}

/// The query; a name that nobody knows is an error, so that a mistyped filter does not select everything.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri).map(|query| Query(query.0)).map_err(|rejection| {
            let why = std::error::Error::source(&rejection)
                .map_or_else(|| rejection.to_string(), ToString::to_string);
            Problem::invalid(format!("the query cannot be read: {why}"))
        })
    }
}

/// The one variable part of the path.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<T: FromStr<Err: std::fmt::Display>, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = axum::extract::Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| Problem::invalid(format!("the path cannot be read: {rejection}")))?;
        text.parse().map(Named).map_err(|error: T::Err| Problem::invalid(error.to_string()))
    }
}

/// The whole body, and the room it takes up in memory while it is held.
pub(crate) async fn read(
    request: Request,
    door: &Door,
    limit: usize,
) -> Result<(BodyRoom<'_>, Vec<u8>), Problem> {
    let too_large = || {
        Problem::new(
            Code::TooLarge,
            format!("a body of more than {limit} bytes is not read: send less at once"),
        )
    };
    let length = header_number(request.headers());
    let mut body = request.into_body();
    if length.is_some_and(|length| length > limit as u64) {
        let _ = tokio::time::timeout(LINGERS, drop_body(body)).await;
        return Err(too_large());
    }
    let (mut room, mut bytes) = (door.limits.room_for_body(), Vec::new());
    let (mut patience, mut until) = (WAITS_FOR_ROOM, Instant::now() + door.limits.body_timeout);
    loop {
        let frame = tokio::time::timeout_at(until, body.frame()).await.map_err(|_| {
            let within = format_duration(door.limits.body_timeout);
            Problem::new(
                Code::RequestTimeout,
                format!("the body did not arrive within {within}: send it faster"),
            )
        })?;
        let Some(frame) = frame else { return Ok((room, bytes)) };
        let frame = frame.map_err(|error| Problem::invalid(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue }; // trailers
        if data.len() > limit - bytes.len() {
            return Err(too_large());
        }
        let began = Instant::now();
        if tokio::time::timeout(patience, room.grow_to(bytes.len() + data.len())).await.is_err() {
            // Others that have come as far as this one may wait for just what it holds.
            drop((room, bytes, data));
            let _ = tokio::time::timeout(LINGERS, drop_body(body)).await;
            let say = "too many large requests are being read: send it again later";
            return Err(Problem::new(Code::Unavailable, say).after(Duration::from_secs(5)));
        }
        // Waited for in all so long, and not so long at every step; a client is not slow meanwhile.
        patience = patience.saturating_sub(began.elapsed());
        until += began.elapsed();
        bytes.extend_from_slice(&data);
    }
}

async fn drop_body(mut body: Body) {
    let mut dropped = 0;
    while let Some(Ok(frame)) = body.frame().await {
        dropped += frame.data_ref().map_or(0, Bytes::len);
        if dropped > DROPPED {
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
    serde_json::from_slice(bytes).map_err(|error| Problem::invalid(unreadable(&error)))
}

/// What is wrong with a JSON text, and where.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Data => format!("the JSON is not what is expected: {error}"),
        _ => format!("the body is not JSON: {error}"),
    }
}
