//! Deliveries: pulled as there is room for them, held until they are stored.

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
use super::{NatsSettings, topology};
use crate::transport::{Delivery, Receipt};

/// The server has so long to confirm that something is accepted.
const LONGEST_ACCEPT: Duration = Duration::from_secs(10);

/// A request for messages waits so long at the server, and is made again then.
const LONGEST_PULL: Duration = Duration::from_secs(20);

/// What is given back goes to somebody else after so long: at once would be to whoever has just given it back.
const GIVEN_BACK_FOR: Duration = Duration::from_secs(1);

/// Receives deliveries and accepts them.
pub(super) struct Consumer {
    server: Arc<Server>,
    settings: NatsSettings,
    // A std mutex: held for a few instructions, never across an await.
    desk: Mutex<Desk>,
    /// Something has arrived.
    arrived: Notify,
    /// There is room for more.
    freed: Notify,
    stopped: watch::Sender<bool>,
    is_consuming: AtomicBool,
}

/// What has come and is not accepted.
#[derive(Default)]
struct Desk {
    /// By its tag: the subject on which the server hears what becomes of it.
    held: BTreeMap<u64, Subject>,
    /// Held, and not handed out.
    waiting: VecDeque<Delivery>,
    last_tag: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Consumer {
    pub(super) fn new(server: Arc<Server>, settings: NatsSettings) -> Self {
        Consumer {
            server,
            settings,
            desk: Mutex::default(),
            arrived: Notify::new(),
            freed: Notify::new(),
            stopped: watch::Sender::new(false),
            is_consuming: AtomicBool::new(false),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Every change leaves it valid, so a poisoned lock is still good to use.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_consuming(&self) -> bool {
        self.is_consuming.load(Ordering::Relaxed)
    }

    pub(super) fn unaccepted(&self) -> u64 {
        self.desk().held.len() as u64
    }

    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Pulls, over all connections, until it is stopped.
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
                    target: "redrive::scheduler", error = %error, subject = self.settings.retry_subject, "cannot consume"
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

    /// Pulls on one connection, until it is lost or this is stopped.
    async fn pull(&self, up: &Up, failures: &mut u32) -> Result<(), Error> {
        let mut stopped = self.stopped.subscribe();
        let mut over = std::pin::pin!(async {
            tokio::select! {
                () = self.server.lost(up.epoch) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
        let prepared = async {
            topology::review_stream(&up.wire.context, &self.settings).await?;
            topology::consumer(&up.wire.context, &self.settings).await
        };
        let consumer = tokio::select! {
            () = &mut over => return Ok(()),
            consumer = prepared => consumer?,
        };
        loop {
            let next = async { self.request(&consumer, self.room().await).await };
            let mut batch = tokio::select! {
                () = &mut over => return Ok(()),
                batch = next => batch?,
            };
            self.is_consuming.store(true, Ordering::Relaxed);
            loop {
                let message = tokio::select! {
                    biased;
                    () = &mut over => {
                        // What has come already need not wait until the server misses an answer.
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

    async fn request(&self, consumer: &PullConsumer, room: usize) -> Result<Batch, Error> {
        Ok(consumer.batch().max_messages(room).expires(LONGEST_PULL).messages().await?)
    }

    /// Waits until something more may be held, and says how much.
    async fn room(&self) -> usize {
        let most = usize::from(self.settings.prefetch.max(1));
        loop {
            let freed = self.freed.notified();
            let held = self.desk().held.len();
            if held < most {
                return most - held;
            }
            freed.await;
        }
    }

    fn take(&self, message: Message, epoch: u64) {
        let about = message.info().ok().map(|info| {
            let published = info.published.unix_timestamp_nanos();
            // The number alone would begin anew with a stream that was made anew.
            (format!("{}/{}/{published}", info.stream, info.stream_sequence), info.delivered > 1)
        });
        let (Some((identity, redelivered)), Some(reply)) = (about, message.reply.clone()) else {
            tracing::error!(target: "redrive::scheduler", subject = %message.subject, "a message that is not from a stream");
            return;
        };
        let properties = from_nats(message.headers.as_ref());
        {
            let mut desk = self.desk();
            desk.last_tag += 1;
            let tag = desk.last_tag;
            desk.held.insert(tag, reply);
            desk.waiting.push_back(Delivery {
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

    pub(super) async fn receive(&self, most: usize) -> Vec<Delivery> {
        let mut stopped = self.stopped.subscribe();
        loop {
            if *stopped.borrow_and_update() {
                return Vec::new();
            }
            // Whoever has been told of an arrival and has gone away leaves it to this look.
            let deliveries: Vec<_> = {
                let mut desk = self.desk();
                let many = desk.waiting.len().min(most);
                desk.waiting.drain(..many).collect()
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

    /// Accepts, and waits until the server has confirmed each. What a receipt stands for is known to the server over all connections.
    pub(super) async fn accept(&self, receipts: Vec<Receipt>) -> bool {
        let replies: Vec<_> = {
            let mut desk = self.desk();
            receipts.iter().filter_map(|receipt| desk.held.remove(&receipt.tag)).collect()
        };
        self.freed.notify_one();
        let are_known = replies.len() == receipts.len();
        let Some(wire) = self.server.wire() else { return false };
        let accept = |reply: Subject| {
            let request = Request::new().payload(AckKind::Ack.into()).timeout(Some(LONGEST_ACCEPT));
            wire.client.send_request(reply, request)
        };
        let answers = futures_util::future::join_all(replies.into_iter().map(accept)).await;
        let failed: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        if let Some(error) = failed.first() {
            tracing::warn!(
                target: "redrive::scheduler", %error, count = failed.len(),
                "the broker could not be told what is stored; it delivers that again"
            );
        }
        are_known && failed.is_empty()
    }

    /// Tells the server, as long as something is held, that somebody works on it.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut interval = tokio::time::interval((self.settings.ack_wait / 3).max(Duration::from_millis(10)));
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if self.server.is_up() {
                self.tell_all(AckKind::Progress).await;
            }
        }
    }

    async fn tell_all(&self, what: AckKind) {
        let Some(wire) = self.server.wire() else { return };
        let replies: Vec<_> = self.desk().held.values().cloned().collect();
        for reply in replies {
            // If it gets lost, the message is delivered once more.
            let _ = wire.client.publish(reply, what.into()).await;
        }
    }

    /// Gives back what is held.
    pub(super) async fn release(&self) {
        let give_back = async {
            self.tell_all(AckKind::Nak(Some(GIVEN_BACK_FOR))).await;
            if let Some(wire) = self.server.wire() {
                let _ = wire.client.flush().await;
            }
        };
        if self.server.is_up() {
            let _ = tokio::time::timeout(Duration::from_secs(2), give_back).await;
        }
        *self.desk() = Desk::default();
    }
}
