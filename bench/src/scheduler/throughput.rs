//! Messages per second from one queue to another.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use redrive::retry::BoxError;
use redrive_scheduler::RetryMessage;

use super::Place;
use super::broker::{Client, WINDOW, message, now_ms, publish, scheduler, settings};

/// Delay of stored messages: longer than it takes to ingest one.
pub(super) const WAIT: Duration = Duration::from_secs(3);

/// Bare loop: consumes, publishes, waits for the confirm, and acknowledges concurrently; stores nothing.
pub(super) async fn bare(place: &Place, messages: u32) -> Result<f64, BoxError> {
    let (consumer, publisher) =
        (Client::connect(&place.broker.url()).await?, Client::connect(&place.broker.url()).await?);
    let settings = settings();
    let target = format!("target.{}", settings.retry_queue);
    consumer.declare(&settings.retry_queue).await?;
    consumer.declare(&target).await?;
    consumer.fill(&settings.retry_queue, (0..messages).map(|n| message(n.to_string(), &target, 0))).await?;
    let channel = &consumer.channel;
    // As many unacknowledged messages as the scheduler has in flight.
    channel.basic_qos(u16::try_from(WINDOW)?, BasicQosOptions::default()).await?;
    let began = Instant::now();
    let (queue, options) = (settings.retry_queue.as_str(), BasicConsumeOptions::default());
    let mut deliveries =
        channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
    let (mut in_flight, mut done) = (FuturesUnordered::new(), 0);
    while done < messages {
        tokio::select! {
            Some(acknowledged) = in_flight.next() => {
                let acknowledged: Result<(), BoxError> = acknowledged;
                acknowledged?;
                done += 1;
            }
            Some(delivery) = deliveries.next() => {
                let (delivery, publisher, target) = (delivery?, &publisher.channel, &target);
                in_flight.push(async move {
                    let message = RetryMessage::from_protobuf(&delivery.data)?;
                    publish(publisher, target, &message.original_payload).await?;
                    delivery.ack(BasicAckOptions::default()).await?;
                    Ok(())
                });
            }
        }
    }
    let took = began.elapsed();
    for queue in [&settings.retry_queue, &target] {
        publisher.delete(queue).await?;
    }
    Ok(f64::from(messages) / took.as_secs_f64())
}

/// Scheduler: stores, accepts, publishes when due, waits for the confirm, and settles.
pub(super) async fn ours(place: &Place, messages: u32, wait: Duration) -> Result<f64, BoxError> {
    let client = Client::connect(&place.broker.url()).await?;
    let settings = settings();
    let target = format!("target.{}", settings.retry_queue);
    client.declare(&settings.retry_queue).await?;
    client.declare(&target).await?;
    let queue = settings.retry_queue.as_str();
    if wait.is_zero() {
        // Due when the scheduler sees it.
        client.fill(queue, (0..messages).map(|n| message(n.to_string(), &target, now_ms()))).await?;
        let began = Instant::now();
        let scheduler = scheduler(&settings, &place.broker.url(), &place.fresh()).await?;
        client.filled(&target, messages).await?;
        return end(&client, scheduler, [queue, &target], messages, began.elapsed()).await;
    }
    // Without a due time, each waits by the backoff of its queue, which is this long.
    client.fill(queue, (0..messages).map(|n| message(n.to_string(), &target, 0))).await?;
    let settings =
        redrive_scheduler::Settings { base_delay: wait, jitter: Duration::ZERO, ..settings.clone() };
    let began = Instant::now();
    let scheduler = scheduler(&settings, &place.broker.url(), &place.fresh()).await?;
    client.filled(&target, messages).await?;
    end(&client, scheduler, [queue, &target], messages, began.elapsed() - wait).await
}

async fn end(
    client: &Client,
    scheduler: redrive_scheduler::Scheduler,
    queues: [&str; 2],
    messages: u32,
    took: Duration,
) -> Result<f64, BoxError> {
    let until = now_ms() + 60_000;
    while scheduler.metrics().await.queue_depth() != Some(0) {
        if now_ms() > until {
            return Err("tasks are left over".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scheduler.shutdown().await?;
    if client.declare(queues[1]).await? != messages {
        return Err("not every message has arrived once".into());
    }
    for queue in queues {
        client.delete(queue).await?;
    }
    Ok(f64::from(messages) / took.as_secs_f64())
}
