//! Errors as `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};

use crate::open_enum::open_enum;

/// The media type of every error response.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// Error response of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Identifies the kind of problem; it never changes.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schema(example = "urn:redrive:problem:not_found"))]
    pub kind: String,
    /// The kind of problem, for people.
    pub title: String,
    /// The status of the response.
    #[cfg_attr(feature = "schema", schema(minimum = 400, maximum = 599))]
    pub status: u16,
    /// The last part of `type`, for comparisons.
    #[cfg_attr(feature = "schema", schema(example = "not_found"))]
    pub code: String,
    /// Details of this occurrence, and how to fix it.
    pub detail: String,
    /// Errors of single items of a batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub errors: Vec<ItemError>,
}

/// Error of one item of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ItemError {
    /// Index of the item, from 0.
    pub index: usize,
    /// Details, and how to fix it.
    pub detail: String,
}

open_enum! {
    /// Kind of an error, for comparisons. The codes of a server never change; the last three are the client's own.
    pub enum ProblemCode {
        /// The request is not valid: nothing was done.
        InvalidRequest = "invalid_request",
        /// An item of the batch is not valid: nothing of it was stored.
        InvalidBatch = "invalid_batch",
        /// A token is required.
        TokenRequired = "token_required",
        /// The token is unknown, revoked or expired.
        InvalidToken = "invalid_token",
        /// The token does not have the required scope.
        MissingScope = "missing_scope",
        /// A browser sent the request from another site.
        CrossOrigin = "cross_origin",
        /// There is no such event, endpoint, subscription, replay or token.
        NotFound = "not_found",
        /// The path has no such method.
        MethodNotAllowed = "method_not_allowed",
        /// The request arrived too slowly: nothing was done.
        RequestTimeout = "request_timeout",
        /// The request conflicts with the present state.
        Conflict = "conflict",
        /// Another event has this id.
        IdTaken = "id_taken",
        /// The event is not in the dead-letter queue.
        NotDead = "not_dead",
        /// The message is not in review.
        NotInReview = "not_in_review",
        /// A request with this idempotency key is in flight.
        InProgress = "in_progress",
        /// The request is larger than the server accepts.
        TooLarge = "too_large",
        /// The content type is not JSON.
        UnsupportedMediaType = "unsupported_media_type",
        /// The idempotency key belongs to another request.
        OtherPayload = "other_payload",
        /// Only the server publishes this type.
        ReservedType = "reserved_type",
        /// Too many requests.
        RateLimited = "rate_limited",
        /// The server failed; its log says why.
        Internal = "internal",
        /// The store did not confirm the request, which may have taken effect.
        OutcomeUnknown = "outcome_unknown",
        /// The server cannot serve the request now: nothing was done.
        Unavailable = "unavailable",
        /// The server is shutting down: nothing was done.
        ShuttingDown = "shutting_down",
        /// No complete response arrived: the server is unreachable, or the connection broke.
        NetworkError = "network_error",
        /// No complete response arrived in time.
        Timeout = "timeout",
        /// The response is not one of a redrive server: another program or a proxy answered.
        UnexpectedResponse = "unexpected_response",
    }
}
