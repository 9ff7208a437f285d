//! Reads the origin of a dead-lettered message from its `x-death` header. Retries are never counted from it.

use crate::properties::{HeaderValue, Properties};

/// Header that RabbitMQ adds when it dead-letters a message.
const X_DEATH: &str = "x-death";

/// One entry: queue and reason of a dead-lettering.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death<'a> {
    pub(crate) queue: &'a str,
    pub(crate) reason: &'a str,
}

/// All entries, newest first, as the broker orders them. Malformed entries are skipped.
pub(crate) fn deaths(properties: &Properties) -> impl Iterator<Item = Death<'_>> {
    let entries = match properties.headers.get(X_DEATH) {
        Some(HeaderValue::Array(entries)) => &entries[..],
        _ => &[],
    };
    entries.iter().filter_map(|entry| {
        let HeaderValue::Table(entry) = entry else { return None };
        let queue = entry.get("queue")?.as_text().filter(|queue| !queue.is_empty())?;
        let reason = entry.get("reason").and_then(HeaderValue::as_text).unwrap_or_default();
        Some(Death { queue, reason })
    })
}

/// The entry that names the original queue: the newest with reason `rejected` or `delivery_limit`, because the message may have waited
/// in delay queues since; otherwise the newest of any reason. Entries of the scheduler's own queues are ignored.
pub(crate) fn origin<'a>(properties: &'a Properties, own: &[&str]) -> Option<Death<'a>> {
    let foreign = || deaths(properties).filter(|death| !own.contains(&death.queue));
    foreign().find(|death| matches!(death.reason, "rejected" | "delivery_limit")).or_else(|| foreign().next())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Properties of a message dead-lettered in these queues, newest first.
    pub(crate) fn died_in(deaths: &[(&str, &str)]) -> Properties {
        let entry = |(queue, reason): &(&str, &str)| {
            HeaderValue::Table(
                [
                    ("queue".to_owned(), HeaderValue::text(*queue)),
                    ("reason".to_owned(), HeaderValue::text(*reason)),
                    ("count".to_owned(), HeaderValue::I64(1)),
                ]
                .into(),
            )
        };
        let entries = HeaderValue::Array(deaths.iter().map(entry).collect());
        Properties { headers: [(X_DEATH.to_owned(), entries)].into(), ..Properties::default() }
    }

    #[test]
    fn the_origin_is_the_newest_rejection_outside_our_queues() {
        let own = ["retry.scheduled", "manual-review.pending"];
        for (deaths, expected) in [
            (&[("orders", "rejected")][..], Some("orders")),
            (&[("parking", "expired"), ("orders", "rejected")], Some("orders")),
            (&[("billing", "rejected"), ("orders", "rejected")], Some("billing")),
            (&[("billing", "delivery_limit"), ("orders", "rejected")], Some("billing")),
            (&[("orders", "expired")], Some("orders")),
            (&[("orders", "maxlen"), ("before", "expired")], Some("orders")),
            (&[("retry.scheduled", "rejected"), ("orders", "expired")], Some("orders")),
            (&[("retry.scheduled", "rejected")], None),
            (&[("", "rejected")], None),
            (&[], None),
        ] {
            assert_eq!(origin(&died_in(deaths), &own).map(|death| death.queue), expected, "{deaths:?}");
        }
    }

    #[test]
    fn a_malformed_x_death_header_has_no_entries() {
        for value in [
            HeaderValue::text("orders"),
            HeaderValue::Array(vec![HeaderValue::text("orders")]),
            HeaderValue::Void,
        ] {
            let properties =
                Properties { headers: [(X_DEATH.to_owned(), value)].into(), ..Properties::default() };
            assert_eq!(deaths(&properties).count(), 0);
        }
    }
}
