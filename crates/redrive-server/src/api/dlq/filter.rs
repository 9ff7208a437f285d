//! Which dead events are meant.

use redrive::{DlqCursor, DlqFilter, EventType, SubscriptionName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::problem::Problem;
use crate::api::time::Instant;

/// Why an event was given up.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    Permanent,
    AttemptsExhausted,
    DeadlineExceeded,
    BudgetSpent,
    WaitTooLong,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Reason::Permanent => "permanent",
            Reason::AttemptsExhausted => "attempts_exhausted",
            Reason::DeadlineExceeded => "deadline_exceeded",
            Reason::BudgetSpent => "budget_spent",
            Reason::WaitTooLong => "wait_too_long",
        }
    }
}

/// Which dead events are meant. Everything that is given must hold.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only those of this type
    #[serde(rename = "type")]
    #[param(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[^\s\x00-\x1f\x7f-\x9f*]+$")]
    pub(super) event_type: Option<EventType>,
    /// Only those published at or after this instant
    pub(super) since: Option<Instant>,
    /// Only those published before this instant
    pub(super) until: Option<Instant>,
    /// Only those given up for this reason
    #[param(inline)]
    #[schema(inline)]
    pub(super) reason: Option<Reason>,
    /// Only those with this text in one of their errors
    #[param(max_length = 1000)]
    #[schema(max_length = 1000)]
    pub(super) text: Option<String>,
    /// Only those of this group, as `/v1/dlq/groups` shows it
    #[param(max_length = 1000)]
    #[schema(max_length = 1000)]
    pub(super) fingerprint: Option<String>,
    /// Only those that this endpoint or subscription has given up
    #[param(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[!-~]+$")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255, pattern = r"^[!-~]+$")]
    pub(super) subscription: Option<SubscriptionName>,
}

/// The longest text that is looked for, in characters.
const LONGEST_TEXT: usize = 1000;

impl TryFrom<Filter> for DlqFilter {
    type Error = Problem;

    fn try_from(filter: Filter) -> Result<Self, Problem> {
        for (name, text) in [("text", &filter.text), ("fingerprint", &filter.fingerprint)] {
            if text.as_ref().is_some_and(|text| text.chars().count() > LONGEST_TEXT) {
                return Err(Problem::invalid(format!("{name} has at most {LONGEST_TEXT} characters")));
            }
        }
        Ok(DlqFilter {
            event_type: filter.event_type,
            since: filter.since.map(|at| at.0),
            until: filter.until.map(|at| at.0),
            reason: filter.reason.map(|reason| reason.as_str().to_owned()),
            text: filter.text,
            fingerprint: filter.fingerprint,
            subscription: filter.subscription,
        })
    }
}

/// Where a list goes on.
pub(crate) fn cursor(after: Option<&str>) -> Result<Option<DlqCursor>, Problem> {
    let Some(after) = after else { return Ok(None) };
    let is_short = after.len() <= LONGEST_CURSOR;
    after
        .parse()
        .ok()
        .filter(|_| is_short)
        .map(Some)
        .ok_or_else(|| Problem::invalid("`after` is not a cursor: pass on the `next` of the page before"))
}

/// The longest text of a cursor.
const LONGEST_CURSOR: usize = 64;
