//! Lateness of messages when they are back in their queue, as a consumer sees it.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use redrive::retry::BoxError;
use redrive_scheduler::{Scheduler, Settings};

use super::Place;
use super::broker::{Client, message, now_ms, scheduler, settings};

/// Messages per second.
const RATE: u32 = 200;

/// Delay of each message.
const WAIT_MS: i64 = 2000;

/// Tolerance: the store uses the database's clock, which this process only estimates.
const CLOCKS_MS: i64 = 20;

/// Milliseconds after the time at which each was due, in ascending order.
#[derive(Debug)]
pub(super) struct Drift(Vec<i64>);

impl Drift {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share of a count
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let place = (self.0.len() as f64 * share) as usize;
        self.0.get(place.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default() as f64
    }
}

/// Measures with a new scheduler.
pub(super) async fn measure(place: &Place, location: &str, seconds: u32) -> Result<Drift, BoxError> {
    let settings = settings();
    let client = Client::connect(&place.broker.url()).await?;
    client.declare(&settings.retry_queue).await?;
    let scheduler = scheduler(&settings, &place.broker.url(), location).await?;
    let drift = of(place, &settings, &scheduler, seconds).await?;
    scheduler.shutdown().await?;
    Ok(drift)
}

/// Measures with a running scheduler.
pub(super) async fn of(
    place: &Place,
    settings: &Settings,
    _running: &Scheduler,
    seconds: u32,
) -> Result<Drift, BoxError> {
    let (sender, receiver) =
        (Client::connect(&place.broker.url()).await?, Client::connect(&place.broker.url()).await?);
    let target = format!("target.{}", settings.retry_queue);
    sender.declare(&target).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut deliveries = receiver
        .channel
        .basic_consume(target.as_str().into(), "".into(), options, FieldTable::default())
        .await?;
    let messages = RATE * seconds;
    let (queue, to) = (settings.retry_queue.clone(), target.clone());
    let sent = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
        for n in 0..messages {
            tick.tick().await;
            sender.fill(&queue, std::iter::once(message(format!("d-{n}"), &to, now_ms() + WAIT_MS))).await?;
        }
        Ok::<_, BoxError>(())
    });
    let mut late = Vec::new();
    for _ in 0..messages {
        let delivery = deliveries.next().await.ok_or("the consumer has ended")??;
        let now = now_ms();
        let payload: serde_json::Value = serde_json::from_slice(&delivery.data)?;
        late.push(now - payload["due"].as_i64().ok_or("it says when it is due")?);
    }
    sent.await??;
    late.sort_unstable();
    if let Some(first) = late.first().filter(|first| **first < -CLOCKS_MS) {
        return Err(format!("a message was back {} ms before its time", -first).into());
    }
    Ok(Drift(late))
}
