//! Where a dead-lettered message comes from, as its `x-death` header tells. Attempts are never counted by it.

use crate::properties::{HeaderValue, Properties};

/// The header that a dead-letter exchange leaves.
const X_DEATH: &str = "x-death";

/// A place where a message has died.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death<'a> {
    pub(crate) queue: &'a str,
    pub(crate) reason: &'a str,
}

/// All of them, the newest first, as the broker keeps them. Of an entry that is no entry, nothing is made.
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

/// The death that sent it here: the newest one at which a consumer gave it up (`rejected`, `delivery_limit`), because a message
/// that was given up may have waited in other queues since; if there is none, the newest of any reason. Never one in our own queues.
pub(crate) fn origin<'a>(properties: &'a Properties, own: &[&str]) -> Option<Death<'a>> {
    let foreign = || deaths(properties).filter(|death| !own.contains(&death.queue));
    foreign().find(|death| matches!(death.reason, "rejected" | "delivery_limit")).or_else(|| foreign().next())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Properties of a message that has died in these queues, the newest first.
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
    fn the_origin_is_where_a_consumer_gave_it_up_last() {
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
    fn what_is_no_list_of_deaths_names_nobody() {
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
