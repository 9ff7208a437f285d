//! The flags that select dead events.

use clap::Args;
use redrive::{DlqFilter, EventType, SubscriptionName, Timestamp};

use crate::moment;

/// Everything that is given must hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filter")]
pub(crate) struct FilterArgs {
    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = |text: &str| EventType::new(text))]
    event_type: Option<EventType>,
    /// Only events published at or after this: an instant, or an age such as 2h
    #[arg(long, value_name = "WHEN", value_parser = moment::parse)]
    since: Option<Timestamp>,
    /// Only events published before this: an instant, or an age such as 2h
    #[arg(long, value_name = "WHEN", value_parser = moment::parse)]
    until: Option<Timestamp>,
    /// Only those given up for this reason
    #[arg(long, value_name = "REASON", value_parser = ["permanent", "attempts_exhausted", "deadline_exceeded", "budget_spent", "wait_too_long"])]
    reason: Option<String>,
    /// Only those with this text in one of their errors
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Only those of one group, as `redrive dlq groups` shows it
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<String>,
    /// Only those that one subscription has given up: its name, or the id of an endpoint
    #[arg(long, value_name = "NAME", value_parser = |text: &str| SubscriptionName::new(text))]
    subscription: Option<SubscriptionName>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> DlqFilter {
        DlqFilter {
            event_type: self.event_type.clone(),
            since: self.since,
            until: self.until,
            reason: self.reason.clone(),
            text: self.text.clone(),
            fingerprint: self.fingerprint.clone(),
            subscription: self.subscription.clone(),
        }
    }

    /// Whether it selects anything less than everything.
    pub(crate) fn is_set(&self) -> bool {
        self.event_type.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.reason.is_some()
            || self.text.is_some()
            || self.fingerprint.is_some()
            || self.subscription.is_some()
    }
}
