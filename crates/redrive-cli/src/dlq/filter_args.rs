//! The flags that select dead letters.

use clap::Args;
use redrive::EventType;
use redrive::retry::Timestamp;
use redrive::subscription::SubscriptionName;
use redrive_api::dlq::DlqFilter;
use redrive_api::time::Time;

use crate::time_format;

/// Selects dead letters; every given flag must match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filter")]
pub(crate) struct FilterArgs {
    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = |text: &str| EventType::new(text))]
    event_type: Option<EventType>,
    /// Only events published at or after this: an instant, or an age such as 2h
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    since: Option<Timestamp>,
    /// Only events published before this: an instant, or an age such as 2h
    #[arg(long, value_name = "WHEN", value_parser = time_format::parse)]
    until: Option<Timestamp>,
    /// Only dead letters with this reason
    #[arg(long, value_name = "REASON", value_parser = ["permanent", "attempts_exhausted", "deadline_exceeded", "budget_spent", "wait_too_long", "no_subscription"])]
    reason: Option<String>,
    /// Only dead letters with this text in one of their errors
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Only dead letters with this error fingerprint, as `redrive dlq groups` shows it
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<String>,
    /// Only dead letters of one subscription, and events that died in its handler: its name, or the id of an endpoint
    #[arg(long, value_name = "NAME", value_parser = |text: &str| SubscriptionName::new(text))]
    subscription: Option<SubscriptionName>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> DlqFilter {
        DlqFilter {
            event_type: self.event_type.as_ref().map(ToString::to_string),
            since: self.since.map(Time),
            until: self.until.map(Time),
            reason: self.reason.as_deref().map(Into::into),
            text: self.text.clone(),
            fingerprint: self.fingerprint.clone(),
            subscription: self.subscription.as_ref().map(ToString::to_string),
        }
    }

    /// Whether any flag is given.
    pub(crate) fn is_set(&self) -> bool {
        self.filter() != DlqFilter::default()
    }

    /// Says that the filter matches nothing.
    pub(crate) fn none(&self) -> &'static str {
        if self.is_set() { "No dead letter matches." } else { "The dead-letter queue is empty." }
    }
}
