//! What went wrong, as `application/problem+json` (RFC 9457): the same shape everywhere, with a code that never changes.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive::{BusError, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

/// The media type of every error.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// What kind of problem it is. The names are part of the API.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidRequest,
    InvalidBatch,
    TokenRequired,
    InvalidToken,
    MissingScope,
    CrossOrigin,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    Misdirected,
    Conflict,
    NotDead,
    NotInReview,
    InProgress,
    TooLarge,
    UnsupportedMediaType,
    OtherPayload,
    ReservedType,
    RateLimited,
    Internal,
    OutcomeUnknown,
    Unavailable,
    ShuttingDown,
}

impl Code {
    /// Its name, its status and its title.
    fn parts(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Code::InvalidRequest => ("invalid_request", StatusCode::BAD_REQUEST, "The request is not valid"),
            Code::InvalidBatch => {
                ("invalid_batch", StatusCode::BAD_REQUEST, "Nothing of the batch was stored")
            }
            Code::TokenRequired => ("token_required", StatusCode::UNAUTHORIZED, "A token is required"),
            Code::InvalidToken => ("invalid_token", StatusCode::UNAUTHORIZED, "The token is not valid"),
            Code::MissingScope => ("missing_scope", StatusCode::FORBIDDEN, "The token does not allow this"),
            Code::CrossOrigin => ("cross_origin", StatusCode::FORBIDDEN, "Another site may not do this"),
            Code::NotFound => ("not_found", StatusCode::NOT_FOUND, "There is no such thing"),
            Code::MethodNotAllowed => {
                ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED, "The path has no such method")
            }
            Code::RequestTimeout => {
                ("request_timeout", StatusCode::REQUEST_TIMEOUT, "The request took too long to arrive")
            }
            Code::Misdirected => {
                ("misdirected", StatusCode::MISDIRECTED_REQUEST, "Another server knows about this")
            }
            Code::Conflict => ("conflict", StatusCode::CONFLICT, "It has changed meanwhile"),
            Code::NotDead => ("not_dead", StatusCode::CONFLICT, "The event is not in the dead-letter queue"),
            Code::NotInReview => {
                ("not_in_review", StatusCode::CONFLICT, "Nobody waits for a decision about this message")
            }
            Code::InProgress => ("in_progress", StatusCode::CONFLICT, "The same request is under way"),
            Code::TooLarge => ("too_large", StatusCode::PAYLOAD_TOO_LARGE, "The request is too large"),
            Code::UnsupportedMediaType => (
                "unsupported_media_type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "The content type is not supported",
            ),
            Code::OtherPayload => {
                ("other_payload", StatusCode::UNPROCESSABLE_ENTITY, "The key stands for another request")
            }
            Code::ReservedType => {
                ("reserved_type", StatusCode::UNPROCESSABLE_ENTITY, "Only the server publishes such events")
            }
            Code::RateLimited => ("rate_limited", StatusCode::TOO_MANY_REQUESTS, "Too many requests"),
            Code::Internal => {
                ("internal", StatusCode::INTERNAL_SERVER_ERROR, "Something is wrong with the server")
            }
            Code::OutcomeUnknown => {
                ("outcome_unknown", StatusCode::SERVICE_UNAVAILABLE, "It may or may not have been done")
            }
            Code::Unavailable => {
                ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "The server cannot do this now")
            }
            Code::ShuttingDown => {
                ("shutting_down", StatusCode::SERVICE_UNAVAILABLE, "The server is shutting down")
            }
        }
    }
}

/// What went wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    code: Code,
    detail: String,
    errors: Vec<ItemError>,
    retry_after: Option<Duration>,
}

/// What went wrong, as it is written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemView {
    /// Names the kind of problem for ever.
    #[serde(rename = "type")]
    #[schema(example = "urn:redrive:problem:not_found")]
    kind: String,
    /// The kind of problem, for people.
    title: &'static str,
    /// The status of the response.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The last part of `type`, to compare with.
    #[schema(example = "not_found")]
    code: &'static str,
    /// What is wrong this time, and what to do.
    detail: String,
    /// What is wrong with which item of a batch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<ItemError>,
}

/// What is wrong with one item of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ItemError {
    /// Which item, counted from 0.
    pub(crate) index: usize,
    /// What is wrong, and what to do.
    pub(crate) detail: String,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Problem { code, detail: detail.into(), errors: Vec::new(), retry_after: None }
    }

    /// Something in the request is wrong.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Problem::new(Code::InvalidRequest, detail)
    }

    pub(crate) fn of_items(errors: Vec<ItemError>) -> Self {
        let detail = match errors.len() {
            1 => "one item is not valid: mend it and send the whole batch again".to_owned(),
            n => format!("{n} items are not valid: mend them and send the whole batch again"),
        };
        Problem { errors, ..Problem::new(Code::InvalidBatch, detail) }
    }

    /// Says when to come again.
    pub(crate) fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Whether it may have been done all the same.
    pub(crate) fn is_unknown(&self) -> bool {
        self.code == Code::OutcomeUnknown
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (code, status, title) = self.code.parts();
        let kind = format!("urn:redrive:problem:{code}");
        let Problem { detail, errors, retry_after, .. } = self;
        let view = ProblemView { kind, title, status: status.as_u16(), code, detail, errors };
        let body = serde_json::to_vec(&view).expect("texts and numbers always serialise");
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(wait) = retry_after {
            // Whole seconds, and never too early.
            let seconds = wait.as_millis().div_ceil(1000).max(1).to_string();
            if let Ok(seconds) = HeaderValue::from_str(&seconds) {
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let said = error.to_string();
        match error {
            StoreError::NoSuchEvent { .. } => Problem::new(Code::NotFound, said),
            StoreError::NotDead { .. } => Problem::new(Code::NotDead, said),
            StoreError::PayloadTooLarge { .. }
            | StoreError::MetadataTooLarge { .. }
            | StoreError::BatchTooLarge { .. }
            | StoreError::DocumentTooLarge { .. } => Problem::new(Code::TooLarge, said),
            StoreError::DocumentTaken { .. } | StoreError::DocumentChanged { .. } => {
                Problem::new(Code::Conflict, said)
            }
            StoreError::Model(_) | StoreError::Nul => Problem::invalid(said),
            StoreError::Closed => shutting_down(),
            StoreError::Unknown { .. } | StoreError::Lost { .. } => {
                let say = "the store did not confirm it: send it again with the same id or Idempotency-Key";
                Problem::new(Code::OutcomeUnknown, format!("{say} ({said})")).after(Duration::from_secs(1))
            }
            StoreError::Busy
            | StoreError::DiskFull
            | StoreError::Exhausted
            | StoreError::Unreachable { .. }
            | StoreError::Stopped { .. } => {
                tracing::error!(target: "redrive::http", error = %said, "the store cannot do what is asked of it");
                Problem::new(Code::Unavailable, said).after(Duration::from_secs(5))
            }
            _ => {
                tracing::error!(target: "redrive::http", error = %said, "the store failed");
                Problem::new(Code::Internal, "the store failed; its log says why")
            }
        }
    }
}

impl From<BusError> for Problem {
    fn from(error: BusError) -> Self {
        match error {
            BusError::Store(error) => error.into(),
            BusError::Shutdown(_) => shutting_down(),
            BusError::InvalidPayload(_) | BusError::Pattern(_) | BusError::Model(_) | BusError::Policy(_) => {
                Problem::invalid(error.to_string())
            }
            error => {
                tracing::error!(target: "redrive::http", %error, "the bus failed");
                Problem::new(Code::Internal, "the bus failed; its log says why")
            }
        }
    }
}

pub(crate) fn shutting_down() -> Problem {
    Problem::new(Code::ShuttingDown, "send the request again, to whoever takes over")
        .after(Duration::from_secs(1))
}
