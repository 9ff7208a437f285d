//! Names that only the product itself uses: event types that clients cannot publish, and subscriptions that clients cannot pull from.
//!
//! A receiver of `redrive.endpoint.disabled` must not get a forgery, and a forged `retry.task` would make the scheduler publish any
//! message to any queue of the broker.

use redrive_scheduler::{REPUBLISHER, TASK};

/// Event types that begin so are published by the server only.
const TYPE_PREFIX: &str = "redrive.";

/// Subscriptions whose names begin so belong to webhook endpoints.
const ENDPOINT_PREFIX: &str = "ep_";

/// Refuses an event type that clients may not publish.
pub(crate) fn check_type(event_type: &str) -> Result<(), String> {
    if event_type == TASK || event_type.starts_with(TYPE_PREFIX) {
        return Err(format!(
            "the type {TASK} and types that begin with {TYPE_PREFIX} are published by the server only: choose another name"
        ));
    }
    Ok(())
}

/// Whether a subscription of this name belongs to the server or to a scheduler on its database.
pub(crate) fn is_subscription(name: &str) -> bool {
    name == REPUBLISHER || name.starts_with(ENDPOINT_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_subscriptions_of_the_product_are_reserved() {
        for reserved in ["retry.task", "redrive.", "redrive.endpoint.disabled", "redrive.test"] {
            assert!(check_type(reserved).is_err(), "{reserved}");
        }
        for free in ["retry.tasks", "retry", "order.created", "redrives.x", "my.redrive.x"] {
            assert!(check_type(free).is_ok(), "{free}");
        }
        assert!(is_subscription("republisher") && is_subscription("ep_1"));
        assert!(!is_subscription("billing") && !is_subscription("republishers"));
    }
}
