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

use super::broker::{Broker, Purpose, short};
use super::convert::from_amqp;
use crate::transport::{Delivery, Receipt};

/// The broker has so long to take an acknowledgement.
const LONGEST_ACCEPT: Duration = Duration::from_secs(10);

/// Receives deliveries and accepts them.
pub(super) struct Consumer {
    broker: Arc<Broker>,
    prefetch: u16,
    /// Held while somebody waits for a delivery; only one does.
    link: tokio::sync::Mutex<Option<Link>>,
    // A std mutex: held for a few instructions, never across an await.
    ledger: Mutex<Option<Ledger>>,
    stopped: watch::Sender<bool>,
    /// Connections in a row on which nothing came.
    fruitless: AtomicU32,
}

/// A connection with a consumer on it.
struct Link {
    /// Ends with this.
    connection: Connection,
    deliveries: lapin::Consumer,
    epoch: u64,
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
            fruitless: AtomicU32::new(0),
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
        loop {
            let received = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return Vec::new(),
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
        let link = match link {
            Some(link) => link,
            none => {
                // What ends every connection must not be met as fast as possible.
                let fruitless = self.fruitless.fetch_add(1, Ordering::Relaxed);
                if fruitless > 0 {
                    tokio::time::sleep(self.broker.wait(Purpose::Consume, fruitless)).await;
                }
                none.insert(self.connect().await)
            }
        };
        let first = match link.deliveries.next().await {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) if matches!(error.kind(), ErrorKind::ParsingError(_)) => {
                tracing::error!(
                    target: "redrive::scheduler", %error, queue = self.broker.retry_queue,
                    "the broker delivers something that cannot be read, such as a header whose name is not UTF-8: take it out of the queue by hand"
                );
                return None;
            }
            Some(Err(error)) => {
                tracing::warn!(target: "redrive::scheduler", %error, "the connection to consume was lost");
                return None;
            }
            None => {
                tracing::warn!(target: "redrive::scheduler", queue = self.broker.retry_queue, "the broker has cancelled the consumer");
                return None;
            }
        };
        self.fruitless.store(0, Ordering::Relaxed);
        let mut deliveries = vec![first];
        while deliveries.len() < most {
            // An end is found again by whoever waits next.
            let Some(Some(Ok(delivery))) = link.deliveries.next().now_or_never() else { break };
            deliveries.push(delivery);
        }
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

    async fn connect(&self) -> Link {
        let mut attempt = 1;
        loop {
            let (connection, epoch) = self.broker.connect(Purpose::Consume).await;
            match self.consume(&connection).await {
                Ok((channel, deliveries)) => {
                    *self.ledger() = Some(Ledger { epoch, channel, tags: BTreeSet::new() });
                    return Link { connection, deliveries, epoch };
                }
                Err(error) => {
                    tracing::warn!(target: "redrive::scheduler", %error, queue = self.broker.retry_queue, "cannot consume");
                    tokio::time::sleep(self.broker.wait(Purpose::Consume, attempt)).await;
                    attempt += 1;
                }
            }
        }
    }

    async fn consume(&self, connection: &Connection) -> lapin::Result<(Channel, lapin::Consumer)> {
        let channel = connection.create_channel().await?;
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
        let queue = short(&self.broker.retry_queue);
        let deliveries = channel
            .basic_consume(queue, "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await?;
        Ok((channel, deliveries))
    }

    pub(super) async fn accept(&self, receipts: Vec<Receipt>) -> bool {
        let Some(acknowledgements) = self.acknowledgements(&receipts) else { return false };
        let (channel, acknowledgements) = acknowledgements;
        let accept = async {
            for (tag, multiple) in acknowledgements {
                channel.basic_ack(tag, BasicAckOptions { multiple }).await?;
            }
            lapin::Result::Ok(())
        };
        match tokio::time::timeout(LONGEST_ACCEPT, accept).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(target: "redrive::scheduler", %error, "the broker could not be told what is stored; it delivers that again");
                false
            }
            Err(_) => false,
        }
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
