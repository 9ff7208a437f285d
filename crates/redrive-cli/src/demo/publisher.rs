//! Publishes the events of the shop from concurrent tasks, at a bounded rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redrive::EventBus;
use tokio::task::JoinSet;

use super::acknowledged::Acknowledged;
use super::demo_error;
use super::shop::Shop;
use crate::failure::Failure;

/// Concurrent publishers; their events share a sync.
const PUBLISHERS: usize = 64;

/// Number, rate and duration of the publishes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Plan {
    /// Number of the first event.
    pub(super) first: u64,
    /// Maximum number of events.
    pub(super) events: u64,
    /// Maximum events per second.
    pub(super) rate: f64,
    /// When to stop, even with events left.
    pub(super) until: Instant,
}

/// Publishes by the plan. Dropping the future stops it.
pub(super) async fn publish(
    bus: &EventBus,
    shop: &Arc<Shop>,
    acknowledged: &Arc<Acknowledged>,
    plan: Plan,
) -> Result<(), Failure> {
    let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut publishers = JoinSet::<Result<(), Failure>>::new();
    for _ in 0..PUBLISHERS {
        let (bus, shop, next) = (bus.clone(), Arc::clone(shop), Arc::clone(&next));
        let acknowledged = Arc::clone(acknowledged);
        publishers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                #[allow(clippy::cast_precision_loss)] // a demo does not publish 2^53 events
                let due = began + Duration::from_secs_f64(n as f64 / plan.rate);
                if n >= plan.events || due.max(Instant::now()) >= plan.until {
                    return Ok(());
                }
                tokio::time::sleep_until(due.into()).await;
                let (event_type, payload) = shop.event(plan.first + n);
                let id = bus.publish(event_type, &payload).enqueue().await?;
                acknowledged.record(id)?;
            }
        });
    }
    while let Some(ended) = publishers.join_next().await {
        ended.map_err(demo_error)??;
    }
    Ok(())
}
