//! What was answered: what was asked for, or a problem that is said as every other command says it.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Place;
use crate::failure::Failure;
use crate::label;

/// No answer of ours is larger: 200 attempts with 64 KiB each, as text.
const LARGEST: usize = 64 << 20;

/// What went wrong, as the API says it.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    detail: String,
    #[serde(default)]
    code: String,
}

pub(super) async fn read<T: DeserializeOwned>(response: Response<Body>, place: &Place) -> Result<T, Failure> {
    let bytes = body(checked(response, place).await?).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Failure::Failed(format!(
            "the answer cannot be read ({error}): is there a redrive server of this release behind the address?"
        ))
    })
}

pub(super) async fn done(response: Response<Body>, place: &Place) -> Result<(), Failure> {
    checked(response, place).await.map(drop)
}

/// The answer, unless it is a problem.
pub(super) async fn checked(response: Response<Body>, place: &Place) -> Result<Response<Body>, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = body(response).await.unwrap_or_default();
    let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
    Err(failure(status, &problem, place))
}

fn failure(status: StatusCode, problem: &Problem, place: &Place) -> Failure {
    let said = label::one_line(&problem.detail);
    match status {
        StatusCode::BAD_REQUEST if !said.is_empty() => Failure::Usage(said),
        StatusCode::UNAUTHORIZED => Failure::Failed(format!(
            "the server wants a token: give one with --token or in REDRIVE_TOKEN ({said})"
        )),
        _ if said.is_empty() => Failure::Failed(format!(
            "the server has answered {status}: is there a redrive server behind the address?"
        )),
        StatusCode::NOT_FOUND => Failure::Failed(format!("{said}{}", whereabouts(problem, place))),
        _ => Failure::Failed(said),
    }
}

/// Whoever does not find something may have looked elsewhere.
fn whereabouts(problem: &Problem, place: &Place) -> String {
    match (problem.code.as_str(), place.flag().trim()) {
        ("not_found", "") | ("", _) => String::new(),
        (_, flag) => format!(" ({flag})"),
    }
}

async fn body(response: Response<Body>) -> Result<Vec<u8>, Failure> {
    let body = Limited::new(response.into_body(), LARGEST).collect().await;
    let body =
        body.map_err(|error| Failure::Failed(format!("the answer was cut off: {error}; try again")))?;
    Ok(body.to_bytes().to_vec())
}
