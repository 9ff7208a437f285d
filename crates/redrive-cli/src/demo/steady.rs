//! Demo in one process, which is not killed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::EventBus;

use super::acknowledged::{self, Acknowledged};
use super::census::Census;
use super::progress::Progress;
use super::publisher::{Plan, publish};
use super::report::Report;
use super::shop::{Outage, Shop, policy};
use super::{Demo, drain, interrupted};
use crate::failure::Failure;

/// Default rate; an old laptop keeps up with it.
const EVENTS_PER_SECOND: f64 = 4000.0;

/// Start and end of the outage of analytics, as shares of the publishing time.
const OUTAGE: (f64, f64) = (0.25, 0.6);

pub(super) async fn run(
    demo: &Demo,
    path: &Path,
    folder: &Path,
    progress: &Progress,
) -> Result<Report, Failure> {
    let (began, publishing) = (Instant::now(), demo.publishing_time());
    let outage =
        Outage { from: began + publishing.mul_f64(OUTAGE.0), until: began + publishing.mul_f64(OUTAGE.1) };
    let shop = Shop::new(demo.seed, Some(outage));
    let open_for = demo.time().div_f64(15.0).min(Duration::from_secs(1));
    let builder = EventBus::builder().policy(policy(6, Duration::from_secs(1))?);
    let bus = shop.open(builder, path, open_for).await?;
    bus.start().await?;

    #[allow(clippy::cast_precision_loss)] // at most ten million
    let plan = match demo.events {
        // Spread over the publishing time; a slow machine may take longer.
        Some(events) => Plan {
            first: 1,
            events,
            rate: events as f64 / publishing.as_secs_f64(),
            until: began + demo.time() * 10,
        },
        None => Plan { first: 1, events: u64::MAX, rate: EVENTS_PER_SECOND, until: began + publishing },
    };
    let oracle = folder.join("acknowledged");
    let acknowledged = Arc::new(Acknowledged::open(&oracle)?);
    let work = async {
        tokio::select! {
            published = publish(&bus, &shop, &acknowledged, plan) => published?,
            () = interrupted() => {}
        }
        tokio::select! {
            drained = drain(&bus) => drained,
            () = interrupted() => Ok(()),
        }
    };
    tokio::select! {
        worked = work => worked?,
        never = progress.watch(&bus) => match never {},
    }
    let elapsed = began.elapsed();
    let metrics = bus.metrics().await?;
    let report = Report::of(&bus, &acknowledged::read(&oracle)?, elapsed, demo.seed).await?;
    bus.shutdown().await?;
    // Includes the retries of parked deliveries.
    let retries = metrics.by_type.values().map(|of_type| of_type.retries).sum();
    Ok(Report {
        parked: Some(metrics.parked),
        census: Census { retries, ..report.census },
        subscriptions: shop.tallies(),
        ..report
    })
}
