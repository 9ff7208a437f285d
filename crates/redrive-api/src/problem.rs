//! Errors as `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};

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
