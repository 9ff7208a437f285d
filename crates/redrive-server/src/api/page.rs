//! Lists in pages: `{"data": […], "next": cursor or null}`.

use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;

/// How many a page has if nobody says so, and at most.
const USUAL: u32 = 100;
const LARGEST: u32 = 200;

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// The entries.
    pub(crate) data: Vec<T>,
    /// Pass it as `after` to get the next page; `null` if this is the last one.
    pub(crate) next: Option<String>,
}

impl<T> Page<T> {
    /// Of what was found when one more than the page holds was asked for.
    pub(crate) fn of<R>(
        mut found: Vec<R>,
        limit: u32,
        cursor: impl Fn(&R) -> String,
        show: impl Fn(R) -> T,
    ) -> Self {
        let has_more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let next = if has_more { found.last().map(cursor) } else { None };
        Page { data: found.into_iter().map(show).collect(), next }
    }
}

/// A cursor that is a number.
pub(crate) fn number(cursor: &str) -> Result<i64, Problem> {
    let is_number = cursor.len() <= LONGEST_NUMBER && cursor.bytes().all(|byte| byte.is_ascii_digit());
    cursor.parse().ok().filter(|_| is_number).ok_or_else(no_cursor)
}

pub(crate) fn no_cursor() -> Problem {
    Problem::invalid("`after` is not a cursor: pass on the `next` of the page before")
}

/// The longest number, in digits.
const LONGEST_NUMBER: usize = 18;

/// How many are wanted.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Problem> {
    match asked.unwrap_or(USUAL) {
        limit @ 1..=LARGEST => Ok(limit),
        _ => Err(Problem::invalid(format!("limit must be from 1 to {LARGEST}"))),
    }
}
