//! What the scheduler counts: the four metrics of the specification under their names, and more under ours.

use redrive_scheduler::Metrics;

use crate::api::door::Door;
use crate::api::metrics::{connections, durations, stored};
use crate::api::{Family, Kind, Labels};

/// Everything that is counted. How much waits is known only as long as the database can be asked.
pub(super) fn families(metrics: &Metrics, door: &Door) -> Vec<Family> {
    let mut families = Vec::from(by_queue(metrics));
    let depth = metrics.queue_depth();
    families.extend(depth.map(|depth| Family::gauge("retry_queue_depth", "Pending retry tasks", depth)));
    families.push(durations(
        "redrive_scheduler_drift_seconds",
        "How long after its time a message was handed to the broker.",
        &metrics.drift,
    ));
    families.push(durations(
        "redrive_scheduler_confirm_seconds",
        "How long the broker took to confirm a message.",
        &metrics.confirm,
    ));
    families.extend(totals(metrics));
    families.push(reviewed(metrics));
    families.extend(broker(metrics));
    families.extend(metrics.depth.iter().flat_map(stored));
    families.extend(door.meter.families());
    families.extend(connections(&door.limits));
    families.push(
        Family::new("redrive_build_info", "1, with the release as its label.", Kind::Gauge)
            .with(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1),
    );
    families
}

/// As specified: names, labels, and help where it is given.
fn by_queue(metrics: &Metrics) -> [Family; 3] {
    let mut scheduled = Family::new(
        "retries_scheduled_total",
        "Failed messages stored to be retried, by the queue they go back to",
        Kind::Counter,
    );
    let mut executed = Family::new(
        "retries_executed_total",
        "Retries, by queue and by how they went: success is back in its queue, failed is an attempt to bring it there that failed",
        Kind::Counter,
    );
    let mut exhausted = Family::new(
        "retries_exhausted_total",
        "Messages moved to manual review after max retries",
        Kind::Counter,
    );
    for (name, queue) in &metrics.queues {
        let of = |more: Option<&str>| -> Labels {
            let status = more.map(|status| ("status", status.to_owned()));
            [("queue", name.clone())].into_iter().chain(status).collect()
        };
        scheduled = scheduled.with(of(None), queue.scheduled);
        executed = executed.with(of(Some("success")), queue.succeeded).with(of(Some("failed")), queue.failed);
        exhausted = exhausted.with(of(None), queue.exhausted);
    }
    [scheduled, executed, exhausted]
}

fn totals(metrics: &Metrics) -> [Family; 9] {
    [
        ("redrive_scheduler_received_total", "Deliveries that came in.", metrics.received),
        (
            "redrive_scheduler_duplicates_total",
            "Deliveries that were known already, and are one task.",
            metrics.duplicates,
        ),
        (
            "redrive_scheduler_uncounted_total",
            "Failures that their sender had not counted, and the scheduler did.",
            metrics.uncounted,
        ),
        (
            "redrive_scheduler_copies_total",
            "Deliveries that came again after their message had gone back, and went back once more for safety.",
            metrics.copies,
        ),
        (
            "redrive_scheduler_undecodable_total",
            "Deliveries that nobody can read; they are in review.",
            metrics.undecodable,
        ),
        (
            "redrive_scheduler_returned_total",
            "Messages that the broker returned because their queue does not exist.",
            metrics.returned,
        ),
        (
            "redrive_scheduler_unknown_total",
            "Messages published again because it was not known whether the broker has them.",
            metrics.unknown,
        ),
        (
            "redrive_scheduler_put_off_total",
            "Messages put off because the broker confirms nothing that goes to their queue.",
            metrics.put_off,
        ),
        (
            "redrive_scheduler_store_failures_total",
            "Batches that the database did not take, and that were tried again.",
            metrics.store_failures,
        ),
    ]
    .map(|(name, help, value)| Family::counter(name, help, value))
}

fn reviewed(metrics: &Metrics) -> Family {
    let family = Family::new(
        "redrive_scheduler_reviewed_total",
        "Messages brought to manual review, by the reason.",
        Kind::Counter,
    );
    metrics
        .reviewed
        .iter()
        .fold(family, |family, (reason, count)| family.with(vec![("reason", (*reason).to_owned())], *count))
}

fn broker(metrics: &Metrics) -> [Family; 5] {
    let broker = metrics.transport;
    let connected = |family: Family, purpose: &str, is_up: bool| {
        family.with(vec![("purpose", purpose.to_owned())], u64::from(is_up))
    };
    let up = Family::new(
        "redrive_scheduler_connected",
        "Whether the broker is connected to: 1 or 0, by what the connection is for.",
        Kind::Gauge,
    );
    [
        connected(connected(up, "consume", broker.consuming), "publish", broker.publishing),
        Family::gauge(
            "redrive_scheduler_blocked",
            "Whether the broker is short of memory or disk and takes nothing: 1 or 0.",
            u64::from(broker.blocked),
        ),
        Family::counter("redrive_scheduler_connects_total", "Connections that were made.", broker.connects),
        Family::gauge(
            "redrive_scheduler_unaccepted",
            "Deliveries that are not stored and accepted yet.",
            broker.unaccepted,
        ),
        Family::gauge(
            "redrive_scheduler_unconfirmed",
            "Messages that the broker has not confirmed yet.",
            broker.unconfirmed,
        ),
    ]
}
