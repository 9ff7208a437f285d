//! Metrics of `redrive scheduler`: the four specified ones under their names, and more with the prefix `redrive_`.

use redrive_scheduler::Metrics;

use crate::api::http_context::HttpContext;
use crate::api::metrics::{connections, durations, stored};
use crate::metric_family::{Family, Kind, Labels};

/// All metrics. The depth of the retry queue is missing while the database is unavailable.
pub(super) fn families(metrics: &Metrics, http: &HttpContext) -> Vec<Family> {
    let mut families = Vec::from(by_queue(metrics));
    let depth = metrics.queue_depth();
    families.extend(depth.map(|depth| Family::gauge("retry_queue_depth", "Pending retry tasks", depth)));
    families.push(durations(
        "redrive_scheduler_drift_seconds",
        "Delay between the due time of a message and its republish.",
        &metrics.drift,
    ));
    families.push(durations(
        "redrive_scheduler_confirm_seconds",
        "Time until the broker confirmed a republished message.",
        &metrics.confirm,
    ));
    families.extend(totals(metrics));
    families.push(reviewed(metrics));
    families.extend(broker(metrics));
    families.extend(metrics.depth.iter().flat_map(stored));
    families.extend(http.meter.families());
    families.extend(connections(&http.limits));
    families.push(
        Family::new("redrive_build_info", "Version of the running release, as a label.", Kind::Gauge)
            .with(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1),
    );
    families
}

/// Specified metrics: names, labels, and help texts where given.
fn by_queue(metrics: &Metrics) -> [Family; 3] {
    let mut scheduled = Family::new(
        "retries_scheduled_total",
        "Failed messages stored for a retry, by original queue",
        Kind::Counter,
    );
    let mut executed = Family::new(
        "retries_executed_total",
        "Republish attempts, by original queue and status",
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

fn totals(metrics: &Metrics) -> [Family; 10] {
    [
        ("redrive_scheduler_received_total", "Messages received from the retry queue.", metrics.received),
        (
            "redrive_scheduler_duplicates_total",
            "Received messages that were already stored as a task.",
            metrics.duplicates,
        ),
        (
            "redrive_scheduler_uncounted_total",
            "Failures that the scheduler counted because the sender had not increased retry_count.",
            metrics.uncounted,
        ),
        (
            "redrive_scheduler_copies_total",
            "Failures stored as a copy: redelivered after they had been republished, or the id of their task was taken.",
            metrics.copies,
        ),
        (
            "redrive_scheduler_undecodable_total",
            "Received messages that could not be decoded and went to manual review.",
            metrics.undecodable,
        ),
        (
            "redrive_scheduler_unknown_fields_total",
            "Unknown protobuf fields in received messages, which were ignored.",
            metrics.unknown_fields,
        ),
        (
            "redrive_scheduler_returned_total",
            "Messages returned by the broker as unroutable.",
            metrics.returned,
        ),
        (
            "redrive_scheduler_unknown_total",
            "Messages republished because their publisher confirm was lost.",
            metrics.unknown,
        ),
        (
            "redrive_scheduler_deferred_total",
            "Messages deferred because the broker confirms nothing for their queue.",
            metrics.deferred,
        ),
        (
            "redrive_scheduler_store_failures_total",
            "Failed database batches, which were repeated.",
            metrics.store_failures,
        ),
    ]
    .map(|(name, help, value)| Family::counter(name, help, value))
}

fn reviewed(metrics: &Metrics) -> Family {
    let family = Family::new(
        "redrive_scheduler_reviewed_total",
        "Messages moved to manual review, by reason.",
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
        "Whether the scheduler is connected to the broker (1 or 0), by purpose of the connection.",
        Kind::Gauge,
    );
    [
        connected(connected(up, "consume", broker.consuming), "publish", broker.publishing),
        Family::gauge(
            "redrive_scheduler_blocked",
            "Whether the broker blocks publishers because it is short of memory or disk (1 or 0).",
            u64::from(broker.blocked),
        ),
        Family::counter(
            "redrive_scheduler_connects_total",
            "Connections opened to the broker.",
            broker.connects,
        ),
        Family::gauge(
            "redrive_scheduler_unacked",
            "Received messages not yet stored and acknowledged.",
            broker.unacked,
        ),
        Family::gauge(
            "redrive_scheduler_unconfirmed",
            "Published messages not yet confirmed by the broker.",
            broker.unconfirmed,
        ),
    ]
}
