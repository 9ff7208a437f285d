//! Consumes deliveries and acks them, on a connection of its own: a broker that blocks publishers still delivers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ErrorKind};
use tokio::sync::watch;

use super::broker::{Broker, CONSUME, Connected, short};
use super::convert::from_amqp;
use crate::transport::{Delivery, Receipt};

/// Timeout of sending acks.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// After an unparsable message, the consumer reconnects at short intervals for this many deliveries: by then a quorum queue with the
/// default delivery limit has dead-lettered the message. Everything behind it waits until then.
const DEFAULT_DELIVERY_LIMIT: u32 = 24;
const UNPARSABLE_DELAY: Duration = Duration::from_millis(500);

/// Receives deliveries and acks them.
///
/// A message that the client cannot parse ends the connection, and increments the delivery count of all unacked messages; a quorum queue
/// drops those at its limit. After such an end the consumer therefore prefetches one message at a time: only the unparsable message is
/// counted, and the messages before it get through.
pub(super) struct Consumer {
    broker: Arc<Broker>,
    /// Locked by `receive`; one caller at a time.
    link: tokio::sync::Mutex<Option<Link>>,
    // A std mutex: held for a few instructions, never across an await.
    open_channel: Mutex<Option<OpenChannel>>,
    stopped: watch::Sender<bool>,
    /// Serialises acks: a tag covered by a multiple ack must not be acked again.
    ack_lock: tokio::sync::Mutex<()>,
    /// Consecutive connections without a delivery.
    idle_connects: AtomicU32,
    /// Deliveries that are still to be prefetched one by one.
    one_by_one: AtomicU32,
    /// Epoch of a connection to drop because an ack failed on it.
    abandoned: watch::Sender<u64>,
}

/// A connection with a consumer on it.
struct Link {
    /// Keeps the connection open.
    connection: Arc<Connection>,
    deliveries: lapin::Consumer,
    epoch: u64,
    /// Whether the prefetch is 1.
    is_one_by_one: bool,
    /// End of the stream (an error or `None`), seen while collecting a batch that is returned first.
    end: Option<Option<lapin::Result<lapin::message::Delivery>>>,
}

/// The open channel and the tags of its unacked deliveries.
struct OpenChannel {
    epoch: u64,
    channel: Channel,
    tags: BTreeSet<u64>,
}

impl Consumer {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Consumer {
            broker,
            link: tokio::sync::Mutex::default(),
            open_channel: Mutex::default(),
            stopped: watch::Sender::default(),
            ack_lock: tokio::sync::Mutex::default(),
            idle_connects: AtomicU32::new(0),
            one_by_one: AtomicU32::new(0),
            abandoned: watch::Sender::default(),
        }
    }

    fn prefetch(&self) -> u16 {
        self.broker.settings.prefetch.max(1)
    }

    fn open_channel(&self) -> MutexGuard<'_, Option<OpenChannel>> {
        // Every change leaves it valid, so a poisoned lock is still usable.
        self.open_channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_consuming(&self) -> bool {
        self.open_channel().as_ref().is_some_and(|open_channel| open_channel.channel.status().connected())
    }

    pub(super) fn unacked(&self) -> u64 {
        self.open_channel().as_ref().map_or(0, |open_channel| open_channel.tags.len() as u64)
    }

    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(super) async fn receive(&self, max: usize) -> Vec<Delivery> {
        let mut link = self.link.lock().await;
        let mut stopped = self.stopped.subscribe();
        let mut abandoned = self.abandoned.subscribe();
        loop {
            let epoch = link.as_ref().map(|link| link.epoch);
            let received = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return Vec::new(),
                _ = abandoned.wait_for(|abandoned| Some(*abandoned) == epoch) => None,
                received = self.next(&mut link, max) => received,
            };
            match received {
                Some(deliveries) => return deliveries,
                // The queue was deleted or the connection lost: reconnect.
                None => *link = None,
            }
        }
    }

    /// The next batch, or `None` if this connection has ended. Cancel-safe: no delivery is held across an await.
    async fn next(&self, link: &mut Option<Link>, max: usize) -> Option<Vec<Delivery>> {
        // Back to the full prefetch, once everything on the old connection is acked.
        let is_recovered = |link: &Link| link.is_one_by_one && self.one_by_one.load(Ordering::Relaxed) == 0;
        if link.as_ref().is_some_and(is_recovered) && self.unacked() == 0 {
            *link = None;
        }
        let link = match link {
            Some(link) => link,
            none => {
                self.pause().await;
                none.insert(self.connect().await)
            }
        };
        let first = match link.end.take() {
            Some(end) => end,
            None => link.deliveries.next().await,
        };
        let first = match first {
            Some(Ok(first)) => first,
            end => {
                self.ended(end.and_then(Result::err).as_ref());
                return None;
            }
        };
        self.idle_connects.store(0, Ordering::Relaxed);
        let mut deliveries = vec![first];
        while deliveries.len() < max {
            match link.deliveries.next().now_or_never() {
                Some(Some(Ok(delivery))) => deliveries.push(delivery),
                // Nothing more at the moment, or the end of the stream, which is reported after this batch.
                end => {
                    link.end = end;
                    break;
                }
            }
        }
        let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        let fewer = |left: u32| Some(left.saturating_sub(count));
        let _ = self.one_by_one.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer); // the closure always returns Some
        let epoch = link.epoch;
        if let Some(open_channel) = self.open_channel().as_mut() {
            open_channel.tags.extend(deliveries.iter().map(|delivery| delivery.delivery_tag));
        }
        let delivery = |delivery: lapin::message::Delivery| Delivery {
            receipt: Receipt { epoch, tag: delivery.delivery_tag },
            properties: from_amqp(&delivery.properties),
            redelivered: delivery.redelivered,
            body: delivery.data,
            source: None,
            identity: None,
        };
        Some(deliveries.into_iter().map(delivery).collect())
    }

    /// Backs off after connections without a delivery.
    async fn pause(&self) {
        let idle_connects = self.idle_connects.fetch_add(1, Ordering::Relaxed);
        if idle_connects == 0 {
            return;
        }
        let mut wait = self.broker.reconnect.wait(CONSUME, idle_connects);
        if self.one_by_one.load(Ordering::Relaxed) > 0 && idle_connects <= DEFAULT_DELIVERY_LIMIT {
            wait = wait.min(UNPARSABLE_DELAY);
        }
        tokio::time::sleep(wait).await;
    }

    /// Logs the end of a connection and switches to a prefetch of 1 after an unparsable message.
    fn ended(&self, error: Option<&lapin::Error>) {
        let queue = &self.broker.settings.retry_queue;
        match error {
            Some(error) if matches!(error.kind(), ErrorKind::ParsingError(_)) => {
                // Enough for all messages delivered together with it.
                self.one_by_one.store(u32::from(self.prefetch()).saturating_mul(2), Ordering::Relaxed);
                tracing::error!(
                    target: "redrive::scheduler", %error, queue,
                    "the broker delivers a message that cannot be parsed, such as one with a property or header name that is not UTF-8. \
                     Remove it from the queue, or make the queue a quorum queue with a delivery limit and a dead-letter exchange to \
                     the review queue. Until then the prefetch is 1"
                );
            }
            Some(error) => {
                tracing::warn!(target: "redrive::scheduler", %error, "the consuming connection was lost");
            }
            None => {
                tracing::warn!(target: "redrive::scheduler", queue, "the broker cancelled the consumer");
            }
        }
    }

    async fn connect(&self) -> Link {
        let is_one_by_one = self.one_by_one.load(Ordering::Relaxed) > 0;
        let prefetch = if is_one_by_one { 1 } else { self.prefetch() };
        let queue = &self.broker.settings.retry_queue;
        let consume = |connection| consume(connection, queue, prefetch);
        let Connected { connection, opened, epoch } = self.broker.connect(CONSUME, consume).await;
        let (channel, deliveries) = opened;
        *self.open_channel() = Some(OpenChannel { epoch, channel, tags: BTreeSet::new() });
        Link { connection, deliveries, epoch, is_one_by_one, end: None }
    }

    /// Acks deliveries. If that fails, the connection is dropped: unacked deliveries would reduce the prefetch forever.
    pub(super) async fn ack(&self, receipts: Vec<Receipt>) -> bool {
        let Some(epoch) = receipts.first().map(|receipt| receipt.epoch) else { return true };
        let _serialised = self.ack_lock.lock().await;
        let Some((channel, acknowledgements)) = self.acknowledgements(&receipts) else { return false };
        let ack = async {
            for (tag, multiple) in acknowledgements {
                channel.basic_ack(tag, BasicAckOptions { multiple }).await?;
            }
            lapin::Result::Ok(())
        };
        let error = match tokio::time::timeout(ACK_TIMEOUT, ack).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "timed out".to_owned(),
        };
        tracing::warn!(target: "redrive::scheduler", error, "stored messages could not be acked; the broker redelivers them");
        self.abandoned.send_replace(epoch);
        false
    }

    /// The acks to send and their channel: one multiple ack if no earlier delivery is unacked. `None` if the connection is gone.
    fn acknowledgements(&self, receipts: &[Receipt]) -> Option<(Channel, Vec<(u64, bool)>)> {
        let last = receipts.iter().max()?;
        let mut open_channel = self.open_channel();
        let open_channel = open_channel
            .as_mut()
            .filter(|open_channel| receipts.iter().all(|receipt| receipt.epoch == open_channel.epoch))?;
        for receipt in receipts {
            open_channel.tags.remove(&receipt.tag);
        }
        let is_first = open_channel.tags.first().is_none_or(|first| *first > last.tag);
        let acknowledgements = if is_first {
            vec![(last.tag, true)]
        } else {
            receipts.iter().map(|receipt| (receipt.tag, false)).collect()
        };
        Some((open_channel.channel.clone(), acknowledgements))
    }

    pub(super) async fn close(&self) {
        self.stop();
        let link = self.link.lock().await.take();
        if let Some(link) = link {
            // The broker redelivers unacked messages.
            let _ = tokio::time::timeout(Duration::from_secs(2), link.connection.close(200, "closed".into()))
                .await;
        }
        *self.open_channel() = None;
    }
}

async fn consume(
    connection: Arc<Connection>,
    queue: &str,
    prefetch: u16,
) -> lapin::Result<(Channel, lapin::Consumer)> {
    let channel = connection.create_channel().await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let deliveries = channel
        .basic_consume(short(queue), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    Ok((channel, deliveries))
}
