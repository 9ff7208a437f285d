//! Problems as `application/problem+json` (RFC 9457), with codes that never change.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive::BusError;
use redrive::store::{ModelError, StoreError};
use redrive_api::problem::{ItemError, MEDIA_TYPE};

/// Defines [`Code`] as a table: variant, name, status and title.
macro_rules! codes {
    ($($variant:ident = $name:literal, $status:ident, $title:literal;)*) => {
        /// Kind of a problem. The names are part of the API.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Code {
            $($variant,)*
        }

        impl Code {
            /// Names of all kinds.
            #[cfg(test)]
            const NAMES: &[&str] = &[$($name),*];

            /// Returns the name, the HTTP status and the title of the problem.
            fn parts(self) -> (&'static str, StatusCode, &'static str) {
                match self {
                    $(Code::$variant => ($name, StatusCode::$status, $title),)*
                }
            }
        }
    };
}

codes! {
    InvalidRequest = "invalid_request", BAD_REQUEST, "The request is not valid";
    InvalidBatch = "invalid_batch", BAD_REQUEST, "Nothing of the batch was stored";
    TokenRequired = "token_required", UNAUTHORIZED, "A token is required";
    InvalidToken = "invalid_token", UNAUTHORIZED, "The token is not valid";
    MissingScope = "missing_scope", FORBIDDEN, "The token does not allow this";
    CrossOrigin = "cross_origin", FORBIDDEN, "Cross-origin request refused";
    NotFound = "not_found", NOT_FOUND, "Not found";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "The path has no such method";
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT, "The request took too long to arrive";
    Conflict = "conflict", CONFLICT, "Conflict with the current state";
    IdTaken = "id_taken", CONFLICT, "Another event has this id";
    NotDead = "not_dead", CONFLICT, "The event is not in the dead-letter queue";
    NotInReview = "not_in_review", CONFLICT, "The message is not in review";
    InProgress = "in_progress", CONFLICT, "The same request is in flight";
    TooLarge = "too_large", PAYLOAD_TOO_LARGE, "The request is too large";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The content type is not supported";
    OtherPayload = "other_payload", UNPROCESSABLE_ENTITY, "The idempotency key belongs to another request";
    ReservedType = "reserved_type", UNPROCESSABLE_ENTITY, "The event type is reserved";
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, "Too many requests";
    Internal = "internal", INTERNAL_SERVER_ERROR, "Internal error";
    OutcomeUnknown = "outcome_unknown", SERVICE_UNAVAILABLE, "The outcome is unknown";
    Unavailable = "unavailable", SERVICE_UNAVAILABLE, "Temporarily unavailable";
    ShuttingDown = "shutting_down", SERVICE_UNAVAILABLE, "The server is shutting down";
}

/// A problem that becomes the answer.
#[derive(Debug)]
pub(crate) struct Problem {
    code: Code,
    detail: String,
    errors: Vec<ItemError>,
    retry_after: Option<Duration>,
    /// The store's error, for the log and for a caller in this process.
    cause: Option<Cause>,
}

/// Error behind a problem, which HTTP answers do not show. It is an extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct Cause(pub(crate) String);

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Problem { code, detail: detail.into(), errors: Vec::new(), retry_after: None, cause: None }
    }

    /// Something in the request is wrong.
    pub(crate) fn invalid(detail: impl std::fmt::Display) -> Self {
        Problem::new(Code::InvalidRequest, detail.to_string())
    }

    pub(crate) fn of_items(errors: Vec<ItemError>) -> Self {
        let detail = match errors.len() {
            1 => "one item is not valid: mend it and send the whole batch again".to_owned(),
            n => format!("{n} items are not valid: mend them and send the whole batch again"),
        };
        Problem { errors, ..Problem::new(Code::InvalidBatch, detail) }
    }

    /// Sets `Retry-After`.
    pub(crate) fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Whether the request may have taken effect.
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
        let Problem { detail, errors, retry_after, cause, .. } = self;
        let view = redrive_api::problem::Problem {
            kind: format!("urn:redrive:problem:{code}"),
            title: title.to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail,
            errors,
        };
        let body = serde_json::to_vec(&view).expect("texts and numbers serialise");
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(cause) = cause {
            response.extensions_mut().insert(cause);
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
            StoreError::IdTaken { .. } => Problem::new(Code::IdTaken, said),
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
                let cause = Some(Cause(said));
                Problem { cause, ..Problem::new(Code::Internal, "the store failed; its log says why") }
            }
        }
    }
}

impl From<ModelError> for Problem {
    fn from(error: ModelError) -> Self {
        Problem::invalid(error)
    }
}

impl From<BusError> for Problem {
    fn from(error: BusError) -> Self {
        match error {
            BusError::Store(error) => error.into(),
            BusError::Shutdown(_) => shutting_down(),
            BusError::InvalidPayload(_) | BusError::Pattern(_) | BusError::Model(_) | BusError::Policy(_) => {
                Problem::invalid(error)
            }
            error => {
                tracing::error!(target: "redrive::http", %error, "the bus failed");
                Problem::new(Code::Internal, "the bus failed; its log says why")
            }
        }
    }
}

pub(crate) fn shutting_down() -> Problem {
    Problem::new(Code::ShuttingDown, "send the request again, to another server")
        .after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use redrive_api::problem::ProblemCode;

    use super::*;

    #[test]
    fn the_client_knows_every_code() {
        let own_of_the_client = ["network_error", "timeout", "unexpected_response"];
        assert_eq!(ProblemCode::KNOWN, [Code::NAMES, &own_of_the_client].concat());
    }
}
