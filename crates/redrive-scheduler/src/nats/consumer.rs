//! Pulls deliveries within the prefetch limit, and acks them once they are stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::{AckKind, Message};
use async_nats::{Request, Subject};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{Notify, watch};

use super::convert::{from_nats, source};
use super::server::{Server, Up};
use super::topology;
use crate::transport::{Delivery, Receipt};

/// Timeout of the server's confirmation of an ack.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Expiry of a pull request at the server; then it is repeated.
const PULL_EXPIRES: Duration = Duration::from_secs(20);

/// Delay of the redelivery after a nak on shutdown, so that it does not reach this process again.
const NAK_DELAY: Duration = Duration::from_secs(1);

/// Receives deliveries and acks them.
pub(super) struct Consumer {
    server: Arc<Server>,
    // A std mutex: held for a few instructions, never across an await.
    pending: Mutex<Pending>,
    /// Signals a new delivery.
    arrived: Notify,
    /// Signals that the prefetch has capacity again.
    freed: Notify,
    stopped: watch::Sender<bool>,
    is_consuming: AtomicBool,
}

/// Deliveries that are not acked.
#[derive(Default)]
struct Pending {
    /// Reply subject for the ack, by tag.
    unacked: BTreeMap<u64, Subject>,
    /// Received, not yet returned by `receive`.
    waiting: VecDeque<Delivery>,
    last_tag: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Consumer {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Consumer {
            server,
            pending: Mutex::default(),
            arrived: Notify::new(),
            freed: Notify::new(),
            stopped: watch::Sender::default(),
            is_consuming: AtomicBool::new(false),
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        // Every change leaves it valid, so a poisoned lock is still usable.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_consuming(&self) -> bool {
        self.is_consuming.load(Ordering::Relaxed)
    }

    pub(super) fn unacked(&self) -> u64 {
        self.pending().unacked.len() as u64
    }

    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Pulls over all connections until it is stopped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut stopped = self.stopped.subscribe();
        let mut failures = 0;
        loop {
            let up = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                up = self.server.up() => up,
            };
            let Some(up) = up else { break };
            let pulled = self.pull(&up, &mut failures).await;
            self.is_consuming.store(false, Ordering::Relaxed);
            if let Err(error) = pulled {
                failures += 1;
                tracing::warn!(
                    target: "redrive::scheduler", error = %error, subject = self.server.settings.retry_subject, "could not consume"
                );
                let wait = tokio::time::sleep(self.server.wait(failures));
                tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => break,
                    () = wait => {}
                }
            }
        }
        self.is_consuming.store(false, Ordering::Relaxed);
    }

    /// Pulls on one connection until it is lost or the consumer is stopped.
    async fn pull(&self, up: &Up, failures: &mut u32) -> Result<(), Error> {
        let mut stopped = self.stopped.subscribe();
        let mut over = std::pin::pin!(async {
            tokio::select! {
                () = self.server.lost(up.epoch) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
        let prepared = async {
            topology::review_stream(&up.connection.context, &self.server.settings).await?;
            topology::consumer(&up.connection.context, &self.server.settings).await
        };
        let consumer = tokio::select! {
            () = &mut over => return Ok(()),
            consumer = prepared => consumer?,
        };
        loop {
            let next = async { self.request(&consumer, self.capacity().await).await };
            let mut batch = tokio::select! {
                () = &mut over => return Ok(()),
                batch = next => batch?,
            };
            self.is_consuming.store(true, Ordering::Relaxed);
            loop {
                let message = tokio::select! {
                    biased;
                    () = &mut over => {
                        // Keeps what has arrived, which would otherwise wait for the ack deadline.
                        while let Some(Some(Ok(message))) = batch.next().now_or_never() {
                            self.take(message, up.epoch);
                        }
                        return Ok(());
                    }
                    message = batch.next() => message,
                };
                match message {
                    Some(message) => self.take(message?, up.epoch),
                    None => break,
                }
            }
            *failures = 0;
        }
    }

    async fn request(&self, consumer: &PullConsumer, max: usize) -> Result<Batch, Error> {
        Ok(consumer.batch().max_messages(max).expires(PULL_EXPIRES).messages().await?)
    }

    /// Waits until the prefetch has capacity, and returns it.
    async fn capacity(&self) -> usize {
        let max = usize::from(self.server.settings.prefetch.max(1));
        loop {
            let freed = self.freed.notified();
            let unacked = self.pending().unacked.len();
            if unacked < max {
                return max - unacked;
            }
            freed.await;
        }
    }

    fn take(&self, message: Message, epoch: u64) {
        let about = message.info().ok().map(|info| {
            let published = info.published.unix_timestamp_nanos();
            // With the time, because a recreated stream restarts its sequence.
            (format!("{}/{}/{published}", info.stream, info.stream_sequence), info.delivered > 1)
        });
        let (Some((identity, redelivered)), Some(reply)) = (about, message.reply.clone()) else {
            tracing::error!(target: "redrive::scheduler", subject = %message.subject, "received a message that is not from a stream");
            return;
        };
        let properties = from_nats(message.headers.as_ref());
        {
            let mut pending = self.pending();
            pending.last_tag += 1;
            let tag = pending.last_tag;
            pending.unacked.insert(tag, reply);
            pending.waiting.push_back(Delivery {
                receipt: Receipt { epoch, tag },
                body: message.payload.to_vec(),
                source: source(&properties),
                properties,
                redelivered,
                identity: Some(identity),
            });
        }
        self.arrived.notify_one();
    }

    pub(super) async fn receive(&self, max: usize) -> Vec<Delivery> {
        let mut stopped = self.stopped.subscribe();
        loop {
            if *stopped.borrow_and_update() {
                return Vec::new();
            }
            // Checked before waiting: an earlier caller may have consumed the signal and been dropped.
            let deliveries: Vec<_> = {
                let mut pending = self.pending();
                let many = pending.waiting.len().min(max);
                pending.waiting.drain(..many).collect()
            };
            if !deliveries.is_empty() {
                return deliveries;
            }
            tokio::select! {
                () = self.arrived.notified() => {}
                changed = stopped.changed() => if changed.is_err() { return Vec::new() },
            }
        }
    }

    /// Acks and waits for the server's confirmations. Receipts stay valid across connections.
    pub(super) async fn ack(&self, receipts: Vec<Receipt>) -> bool {
        let replies: Vec<_> = {
            let mut pending = self.pending();
            receipts.iter().filter_map(|receipt| pending.unacked.remove(&receipt.tag)).collect()
        };
        self.freed.notify_one();
        let are_known = replies.len() == receipts.len();
        let Some(connection) = self.server.connection() else { return false };
        let ack = |reply: Subject| {
            let request = Request::new().payload(AckKind::Ack.into()).timeout(Some(ACK_TIMEOUT));
            connection.client.send_request(reply, request)
        };
        let answers = futures_util::future::join_all(replies.into_iter().map(ack)).await;
        let failed: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        if let Some(error) = failed.first() {
            tracing::warn!(
                target: "redrive::scheduler", %error, count = failed.len(),
                "stored messages could not be acked; the broker redelivers them"
            );
        }
        are_known && failed.is_empty()
    }

    /// Extends the ack deadline of unacked deliveries regularly.
    pub(super) async fn extend_acks(self: Arc<Self>) {
        let mut interval =
            tokio::time::interval((self.server.settings.ack_wait / 3).max(Duration::from_millis(10)));
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if self.server.is_up() {
                self.send_all(AckKind::Progress).await;
            }
        }
    }

    async fn send_all(&self, ack: AckKind) {
        let Some(connection) = self.server.connection() else { return };
        let replies: Vec<_> = self.pending().unacked.values().cloned().collect();
        for reply in replies {
            // If it is lost, the message is redelivered.
            let _ = connection.client.publish(reply, ack.into()).await;
        }
    }

    /// Naks all unacked deliveries.
    pub(super) async fn release(&self) {
        let nak = async {
            self.send_all(AckKind::Nak(Some(NAK_DELAY))).await;
            if let Some(connection) = self.server.connection() {
                let _ = connection.client.flush().await;
            }
        };
        if self.server.is_up() {
            let _ = tokio::time::timeout(Duration::from_secs(2), nak).await;
        }
        *self.pending() = Pending::default();
    }
}
