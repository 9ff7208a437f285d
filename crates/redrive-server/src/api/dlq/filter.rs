//! Converts a filter of the API into that of the store.

use redrive::EventType;
use redrive::dlq::DlqFilter;
use redrive::subscription::SubscriptionName;
use redrive_api::dlq::{self, DeadReason};

use crate::api::problem::Problem;

/// Longest text to search for, in characters.
const MAX_TEXT_CHARS: usize = 1000;

pub(crate) fn into_filter(filter: dlq::DlqFilter) -> Result<DlqFilter, Problem> {
    for (name, text) in [("text", &filter.text), ("fingerprint", &filter.fingerprint)] {
        if text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT_CHARS) {
            return Err(Problem::invalid(format!("{name} has at most {MAX_TEXT_CHARS} characters")));
        }
    }
    if let Some(DeadReason::Other(_)) = &filter.reason {
        return Err(Problem::invalid(format!("reason is one of {}", DeadReason::KNOWN.join(", "))));
    }
    Ok(DlqFilter {
        event_type: filter.event_type.map(EventType::new).transpose()?,
        since: filter.since.map(|at| at.0),
        until: filter.until.map(|at| at.0),
        reason: filter.reason.map(|reason| reason.to_string()),
        text: filter.text,
        fingerprint: filter.fingerprint,
        subscription: filter.subscription.map(SubscriptionName::new).transpose()?,
    })
}
