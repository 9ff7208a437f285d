//! Deliveries, on a connection of their own: whoever is not allowed to publish may still consume.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ErrorKind};
use tokio::sync::watch;

use super::broker::{Broker, Connected, Purpose, short};
use super::convert::from_amqp;
use crate::transport::{Delivery, Receipt};

/// The broker has so long to take an acknowledgement.
const LONGEST_ACCEPT: Duration = Duration::from_secs(10);

/// After something that cannot be read, a queue with a delivery limit takes it out of the way after so many deliveries at the most, if the limit
/// is the usual one. Until then it is met at short intervals: everything behind it waits.
const USUAL_LIMIT: u32 = 24;
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// Receives deliveries and accepts them.
///
/// A message that the client cannot parse ends the connection, and whatever was delivered with it counts as delivered once more; a quorum
/// queue drops what has reached its limit. So after such an end deliveries come one by one: only the message that cannot be read is
/// counted then, and what is in front of it gets through.
pub(super) struct Consumer {
    broker: Arc<Broker>,
    prefetch: u16,
    /// Held while somebody waits for a delivery; only one does.
    link: tokio::sync::Mutex<Option<Link>>,
    // A std mutex: held for a few instructions, never across an await.
    ledger: Mutex<Option<Ledger>>,
    stopped: watch::Sender<bool>,
    /// Held by whoever accepts: what one of them covers with others must not be named by another at the same time.
    accepting: tokio::sync::Mutex<()>,
    /// Connections in a row on which nothing came.
    fruitless: AtomicU32,
    /// How many deliveries are still to come one by one.
    careful: AtomicU32,
    /// The connection on which the broker could not be told what is stored.
    given_up: watch::Sender<u64>,
}

/// A connection with a consumer on it.
struct Link {
    /// Ends with this.
    connection: Arc<Connection>,
    deliveries: lapin::Consumer,
    epoch: u64,
    /// Whether deliveries come one by one.
    is_careful: bool,
    /// How it has ended, if that was seen before its last deliveries were given away.
    end: Option<Option<lapin::Error>>,
}

/// What was delivered on a channel and is not accepted.
struct Ledger {
    epoch: u64,
    channel: Channel,
    tags: BTreeSet<u64>,
}

impl Consumer {
    pub(super) fn new(broker: Arc<Broker>, prefetch: u16) -> Self {
        Consumer {
            broker,
            prefetch: prefetch.max(1),
            link: tokio::sync::Mutex::default(),
            ledger: Mutex::default(),
            stopped: watch::Sender::new(false),
            accepting: tokio::sync::Mutex::default(),
            fruitless: AtomicU32::new(0),
            careful: AtomicU32::new(0),
            given_up: watch::Sender::new(0),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Option<Ledger>> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_consuming(&self) -> bool {
        self.ledger().as_ref().is_some_and(|ledger| ledger.channel.status().connected())
    }

    pub(super) fn unaccepted(&self) -> u64 {
        self.ledger().as_ref().map_or(0, |ledger| ledger.tags.len() as u64)
    }

    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(super) async fn receive(&self, most: usize) -> Vec<Delivery> {
        let mut link = self.link.lock().await;
        let mut stopped = self.stopped.subscribe();
        let mut given_up = self.given_up.subscribe();
        loop {
            let epoch = link.as_ref().map(|link| link.epoch);
            let received = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return Vec::new(),
                _ = given_up.wait_for(|given_up| Some(*given_up) == epoch) => None,
                received = self.next(&mut link, most) => received,
            };
            match received {
                Some(deliveries) => return deliveries,
                // Cancelled by the broker, because the queue is gone, or the connection is: either way it is made anew.
                None => *link = None,
            }
        }
    }

    /// The next deliveries, or nothing if there will be none on this connection. No delivery is taken before an await.
    async fn next(&self, link: &mut Option<Link>, most: usize) -> Option<Vec<Delivery>> {
        // What was delivered on the old connection has been accepted, but for one at the most.
        let is_over_cautious = |link: &Link| link.is_careful && self.careful.load(Ordering::Relaxed) == 0;
        if link.as_ref().is_some_and(is_over_cautious) && self.unaccepted() == 0 {
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
            Some(end) => Err(end),
            None => {
                link.deliveries.next().await.transpose().map_err(Some).and_then(|first| first.ok_or(None))
            }
        };
        let first = match first {
            Ok(first) => first,
            Err(end) => {
                self.ended(end.as_ref());
                return None;
            }
        };
        self.fruitless.store(0, Ordering::Relaxed);
        let mut deliveries = vec![first];
        while deliveries.len() < most {
            match link.deliveries.next().now_or_never() {
                Some(Some(Ok(delivery))) => deliveries.push(delivery),
                // It is told once these are given away.
                Some(Some(Err(error))) => link.end = Some(Some(error)),
                Some(None) => link.end = Some(None),
                None => break,
            }
            if link.end.is_some() {
                break;
            }
        }
        let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        let fewer = |careful: u32| Some(careful.saturating_sub(count));
        let _ = self.careful.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer); // it is never refused
        let epoch = link.epoch;
        if let Some(ledger) = self.ledger().as_mut() {
            ledger.tags.extend(deliveries.iter().map(|delivery| delivery.delivery_tag));
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

    /// What ends every connection must not be met as fast as possible.
    async fn pause(&self) {
        let fruitless = self.fruitless.fetch_add(1, Ordering::Relaxed);
        if fruitless == 0 {
            return;
        }
        let mut wait = self.broker.wait(Purpose::Consume, fruitless);
        if self.careful.load(Ordering::Relaxed) > 0 && fruitless <= USUAL_LIMIT {
            wait = wait.min(SHORT_WAIT);
        }
        tokio::time::sleep(wait).await;
    }

    /// There will be no more deliveries on this connection.
    fn ended(&self, error: Option<&lapin::Error>) {
        let queue = &self.broker.retry_queue;
        match error {
            Some(error) if matches!(error.kind(), ErrorKind::ParsingError(_)) => {
                // By then, all that was delivered together with it has come through.
                self.careful.store(u32::from(self.prefetch).saturating_mul(2), Ordering::Relaxed);
                tracing::error!(
                    target: "redrive::scheduler", %error, queue,
                    "the broker delivers a message that cannot be read, such as one with a property or the name of a header that is not UTF-8. \
                     Take it out of the queue by hand, or make the queue a quorum queue with a delivery limit and a dead-letter exchange to \
                     the queue for review. Until then deliveries come one by one"
                );
            }
            Some(error) => {
                tracing::warn!(target: "redrive::scheduler", %error, "the connection to consume was lost");
            }
            None => {
                tracing::warn!(target: "redrive::scheduler", queue, "the broker has cancelled the consumer");
            }
        }
    }

    async fn connect(&self) -> Link {
        let is_careful = self.careful.load(Ordering::Relaxed) > 0;
        let prefetch = if is_careful { 1 } else { self.prefetch };
        let consume = |connection| consume(connection, self.broker.retry_queue.clone(), prefetch);
        let Connected { connection, opened, epoch } = self.broker.connect(Purpose::Consume, consume).await;
        let (channel, deliveries) = opened;
        *self.ledger() = Some(Ledger { epoch, channel, tags: BTreeSet::new() });
        Link { connection, deliveries, epoch, is_careful, end: None }
    }

    /// If the broker cannot be told, the connection is given up: it would wait for these for ever, and deliver less each time.
    pub(super) async fn accept(&self, receipts: Vec<Receipt>) -> bool {
        let Some(epoch) = receipts.first().map(|receipt| receipt.epoch) else { return true };
        let _one_after_the_other = self.accepting.lock().await;
        let Some(acknowledgements) = self.acknowledgements(&receipts) else { return false };
        let (channel, acknowledgements) = acknowledgements;
        let accept = async {
            for (tag, multiple) in acknowledgements {
                channel.basic_ack(tag, BasicAckOptions { multiple }).await?;
            }
            lapin::Result::Ok(())
        };
        let error = match tokio::time::timeout(LONGEST_ACCEPT, accept).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it takes nothing".to_owned(),
        };
        tracing::warn!(target: "redrive::scheduler", error, "the broker could not be told what is stored; it delivers that again");
        self.given_up.send_replace(epoch);
        false
    }

    /// What to tell the broker, and on which channel: one word for all where nothing before them is left open. Nothing if the
    /// connection they came by is gone.
    fn acknowledgements(&self, receipts: &[Receipt]) -> Option<(Channel, Vec<(u64, bool)>)> {
        let last = receipts.iter().max()?;
        let mut ledger = self.ledger();
        let ledger =
            ledger.as_mut().filter(|ledger| receipts.iter().all(|receipt| receipt.epoch == ledger.epoch))?;
        for receipt in receipts {
            ledger.tags.remove(&receipt.tag);
        }
        let is_first = ledger.tags.first().is_none_or(|first| *first > last.tag);
        let acknowledgements = if is_first {
            vec![(last.tag, true)]
        } else {
            receipts.iter().map(|receipt| (receipt.tag, false)).collect()
        };
        Some((ledger.channel.clone(), acknowledgements))
    }

    pub(super) async fn close(&self) {
        self.stop();
        let link = self.link.lock().await.take();
        if let Some(link) = link {
            // What was not accepted is delivered again.
            let _ = tokio::time::timeout(Duration::from_secs(2), link.connection.close(200, "closed".into()))
                .await;
        }
        *self.ledger() = None;
    }
}

async fn consume(
    connection: Arc<Connection>,
    queue: String,
    prefetch: u16,
) -> lapin::Result<(Channel, lapin::Consumer)> {
    let channel = connection.create_channel().await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let deliveries = channel
        .basic_consume(short(&queue), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    Ok((channel, deliveries))
}
