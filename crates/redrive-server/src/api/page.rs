//! Pages of lists, and their cursors.

use redrive::dlq::DlqCursor;
use redrive_api::page::{MAX_PAGE, Page, PageQuery};

use super::problem::Problem;

/// Entries of a page by default.
const DEFAULT_LIMIT: u32 = 100;

/// Longest cursor that is a number, in digits.
const MAX_NUMBER_DIGITS: usize = 18;

/// Longest cursor of the dead-letter queue.
const MAX_CURSOR_BYTES: usize = 64;

/// Builds a page from the result of a query for `limit + 1` entries.
pub(crate) fn page<R, T>(
    mut found: Vec<R>,
    limit: u32,
    cursor: impl Fn(&R) -> String,
    view: impl Fn(R) -> T,
) -> Page<T> {
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = if has_more { found.last().map(cursor) } else { None };
    Page { data: found.into_iter().map(view).collect(), next }
}

/// Checks the number of wanted entries.
pub(crate) fn limit(query: &PageQuery) -> Result<u32, Problem> {
    match query.limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        _ => Err(Problem::invalid(format!("limit must be from 1 to {MAX_PAGE}"))),
    }
}

/// Reads a cursor that is a number.
pub(crate) fn number(cursor: &str) -> Result<i64, Problem> {
    let is_number = cursor.len() <= MAX_NUMBER_DIGITS && cursor.bytes().all(|byte| byte.is_ascii_digit());
    cursor.parse().ok().filter(|_| is_number).ok_or_else(no_cursor)
}

/// Reads a cursor of the dead-letter queue.
pub(crate) fn dlq_cursor(after: Option<&str>) -> Result<Option<DlqCursor>, Problem> {
    let Some(after) = after else { return Ok(None) };
    let is_short = after.len() <= MAX_CURSOR_BYTES;
    after.parse().ok().filter(|_| is_short).map(Some).ok_or_else(no_cursor)
}

/// Refuses a cursor of the wrong form.
pub(crate) fn no_cursor() -> Problem {
    Problem::invalid("`after` is not a cursor: pass on the `next` of the page before")
}
