//! Lists: a page with a cursor, and a short list that needs none.

use serde::{Deserialize, Serialize};

/// Maximum number of entries of a page.
pub const MAX_PAGE: u32 = 200;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The entries.
    pub data: Vec<T>,
    /// Pass it as `after` to get the next page; `null` on the last page.
    pub next: Option<String>,
}

/// A list without pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct List<T> {
    /// The entries.
    pub data: Vec<T>,
}

/// Selects a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// At most this many entries
    #[cfg_attr(feature = "schema", param(minimum = 1, maximum = 200, default = 100))]
    pub limit: Option<u32>,
    /// Continue after this cursor: the `next` of the previous page
    #[cfg_attr(feature = "schema", param(max_length = 100))]
    pub after: Option<String>,
}
