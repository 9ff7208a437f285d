//! Publishes with publisher confirms, on a connection of its own, with many messages in flight on one channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Connection};
use tokio::sync::{mpsc, watch};

use super::broker::{Broker, CONNECT_TIMEOUT, Connected, PUBLISH, declare, is_soft, short};
use super::convert::{size, to_amqp};
use super::publisher_confirms::{Confirmed, PublisherConfirms, Reply, Returned};
use crate::header;
use crate::transport::{Publication, PublishError};

/// Maximum number of unconfirmed publications.
const MAX_UNCONFIRMED: usize = 2048;

/// Timed-out publications stay tracked until the connection ends. At this number the connection is dropped.
const MAX_TIMED_OUT: usize = MAX_UNCONFIRMED / 2;

/// A larger body is published on a channel of its own: a refusal for its size closes the channel with everything in flight on it.
const LARGE_BODY_BYTES: usize = 1 << 20;

/// Consecutive empty polls that end the collection of confirms: one poll may end early during a concurrent wake-up.
const EMPTY_POLLS: u32 = 4;

/// Interval of checks for confirm timeouts and the connection's state.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A connection that ends sooner increases the reconnect delay.
const SHORT_LIVED: Duration = Duration::from_secs(10);

/// Cap of that increase: a few seconds, because the broker is reachable.
const MAX_SHORT_LIVED: u32 = 6;

/// Bytes of a header frame beside the properties.
const FRAME_OVERHEAD: usize = 64;

/// A publication and the channel for its outcome.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) publication: Publication,
    pub(super) reply: Reply,
}

/// State of the publisher, shared with the transport.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Whether publishing is possible.
    pub(super) ready: watch::Sender<bool>,
    pub(super) closing: watch::Sender<bool>,
    pub(super) is_blocked: AtomicBool,
    pub(super) unconfirmed: AtomicU64,
}

/// Reason why a connection ended.
enum End {
    /// The connection was lost.
    Lost(String),
    /// The transport was closed.
    Closed,
}

/// Connects and publishes, reconnecting until the transport is closed. Then it drops the receiver of the jobs.
pub(super) async fn run(broker: Arc<Broker>, shared: Arc<Shared>, mut jobs: mpsc::Receiver<Job>) {
    let mut closing = shared.closing.subscribe();
    // A job taken from the queue when the connection had just ended; published on the next one.
    let mut left = None;
    // Consecutive short-lived connections.
    let mut short_lived = 0;
    loop {
        let Connected { connection, opened: channel, .. } = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            connected = broker.connect(PUBLISH, |connection| async move { open(&connection).await }) => connected,
        };
        let since = Instant::now();
        let mut publisher = Publisher {
            broker: &broker,
            shared: &shared,
            connection: &connection,
            channel,
            confirms: PublisherConfirms::default(),
        };
        shared.ready.send_replace(true);
        let end = publisher.run(&mut jobs, &mut left).await;
        let why = if let End::Lost(why) = &end { why } else { "the connection was closed" };
        publisher.confirms.abandon(why);
        shared.ready.send_replace(false);
        shared.is_blocked.store(false, Ordering::Relaxed);
        shared.unconfirmed.store(0, Ordering::Relaxed);
        match end {
            End::Lost(why) => {
                tracing::warn!(target: "redrive::scheduler", why, "the publishing connection was lost");
                short_lived = if since.elapsed() < SHORT_LIVED { short_lived + 1 } else { 1 };
                tokio::time::sleep(broker.reconnect.wait(PUBLISH, short_lived.min(MAX_SHORT_LIVED))).await;
            }
            End::Closed => {
                let _ = tokio::time::timeout(Duration::from_secs(2), connection.close(200, "closed".into()))
                    .await;
                break;
            }
        }
    }
    shared.ready.send_replace(true); // releases pending `ready` calls
}

async fn open(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

struct Publisher<'a> {
    broker: &'a Arc<Broker>,
    shared: &'a Arc<Shared>,
    connection: &'a Arc<Connection>,
    channel: Channel,
    confirms: PublisherConfirms,
}

impl Publisher<'_> {
    async fn run(&mut self, jobs: &mut mpsc::Receiver<Job>, left: &mut Option<Job>) -> End {
        let mut closing = self.shared.closing.subscribe();
        let mut check = tokio::time::interval(CHECK_INTERVAL);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut events = std::pin::pin!(self.connection.events_listener());
        let mut in_flight = FuturesUnordered::new();
        loop {
            let may_publish = self.confirms.len() < MAX_UNCONFIRMED && !self.connection.status().blocked();
            tokio::select! {
                biased;
                Some(first) = in_flight.next() => {
                    // Collects all confirms that have arrived, so that a return is seen with every confirm before it.
                    let mut all = vec![first];
                    let mut empty_polls = 0;
                    while empty_polls < EMPTY_POLLS {
                        match in_flight.next().now_or_never() {
                            Some(Some(more)) => all.push(more),
                            _ => empty_polls += 1,
                        }
                    }
                    if let Err(error) = self.confirmed(all) {
                        return lost(&error);
                    }
                }
                event = events.next() => match event {
                    Some(lapin::Event::Error(error)) => return lost(&error),
                    Some(_) => self.check(),
                    None => return End::Lost("the connection ended".to_owned()),
                },
                _ = closing.wait_for(|closing| *closing) => return End::Closed,
                _ = check.tick() => {
                    self.check();
                    if !self.connection.status().connected() || !self.channel.status().connected() {
                        return End::Lost("the channel ended".to_owned());
                    }
                    if self.confirms.timed_out() >= MAX_TIMED_OUT {
                        return End::Lost("too many publications were never confirmed".to_owned());
                    }
                }
                job = next(left, jobs), if may_publish => {
                    let Some(job) = job else { return End::Closed };
                    if !self.channel.status().connected() {
                        *left = Some(job); // not sent yet: goes to the next connection
                        return End::Lost("the channel ended".to_owned());
                    }
                    if job.publication.body.len() > LARGE_BODY_BYTES {
                        self.publish_large(job);
                    } else if let Some(job) = self.checked_size(job) {
                        in_flight.push(self.publish(job));
                    }
                }
            }
            self.shared.unconfirmed.store(self.confirms.len() as u64, Ordering::Relaxed);
        }
    }

    fn check(&mut self) {
        let is_blocked = self.connection.status().blocked();
        if self.shared.is_blocked.swap(is_blocked, Ordering::Relaxed) != is_blocked {
            tracing::warn!(target: "redrive::scheduler", is_blocked, "the broker blocks or unblocks publishers");
            self.shared.ready.send_replace(!is_blocked);
        }
        if is_blocked {
            self.confirms.extend(Instant::now() + self.broker.settings.confirm_timeout);
        } else {
            self.confirms.expire(Instant::now());
        }
    }

    /// Refuses a message whose headers do not fit into a frame, which would end the connection.
    fn checked_size(&self, job: Job) -> Option<Job> {
        let frame = self.connection.configuration().frame_max() as usize;
        let bytes = size(&job.publication.properties) + FRAME_OVERHEAD;
        if frame == 0 || bytes <= frame {
            return Some(job);
        }
        let why = format!("its headers have about {bytes} bytes, and a frame holds {frame}");
        let _ = job.reply.send(Err(PublishError::Refused { why }));
        None
    }

    /// Registers the publication; the future sends it when first polled, which happens in order of publishing.
    fn publish(&mut self, job: Job) -> impl Future<Output = (u64, lapin::Result<Confirmation>)> + use<> {
        let Job { publication, reply } = job;
        let deadline = Instant::now() + self.broker.settings.confirm_timeout;
        let key = self.confirms.add(publication.id.clone(), publication.queue.clone(), reply, deadline);
        let channel = self.channel.clone();
        async move { (key, send(&channel, &publication).await) }
    }

    fn confirmed(&mut self, all: Vec<(u64, lapin::Result<Confirmation>)>) -> lapin::Result<()> {
        let (mut seen, mut lost) = (Vec::with_capacity(all.len()), Ok(()));
        for (key, confirmation) in all {
            match confirmation {
                Ok(confirmation) => {
                    let is_ack = confirmation.is_ack();
                    let returned = confirmation.take_message().map(|message| Returned {
                        id: id_of(&message).unwrap_or_default(),
                        why: format!("{} {}", message.reply_code, message.reply_text),
                    });
                    seen.push((key, Confirmed { is_ack, returned }));
                }
                Err(error) => lost = Err(error),
            }
        }
        let mut unroutable = self.confirms.confirmed(seen);
        unroutable.retain(|queue| self.broker.is_own(queue));
        if let Some(queue) = unroutable.pop() {
            let connection = Arc::clone(self.connection);
            tokio::spawn(async move { declare_again(&connection, &queue).await });
        }
        lost
    }

    /// Publishes on a channel of its own, so that a refusal affects no other message.
    fn publish_large(&self, job: Job) {
        let connection = Arc::clone(self.connection);
        let limit = self.broker.settings.confirm_timeout.max(Duration::from_secs(60));
        let Some(Job { publication, reply }) = self.checked_size(job) else { return };
        let is_own = self.broker.is_own(&publication.queue);
        tokio::spawn(async move {
            let published = async {
                let channel = open(&connection).await?;
                let confirmation = send(&channel, &publication).await;
                let _ = channel.close(200, "published".into()).await; // may be closed already
                confirmation
            };
            let unknown = |why: String| Err(PublishError::Unknown { why });
            let outcome = match tokio::time::timeout(limit, published).await {
                Ok(Ok(Confirmation::Ack(None))) => Ok(()),
                Ok(Ok(Confirmation::Ack(Some(message)))) => Err(PublishError::Unroutable {
                    queue: publication.queue,
                    why: format!("{} {}", message.reply_code, message.reply_text),
                }),
                Ok(Ok(_)) => unknown("the broker sent a nack".to_owned()),
                Ok(Err(error)) if is_soft(&error, &[AMQPSoftError::PRECONDITIONFAILED]) => {
                    Err(PublishError::Refused { why: error.to_string() })
                }
                Ok(Err(error)) => unknown(error.to_string()),
                Err(_) => unknown("no publisher confirm in time".to_owned()),
            };
            let missing = match &outcome {
                Err(PublishError::Unroutable { queue, .. }) if is_own => Some(queue.clone()),
                _ => None,
            };
            let _ = reply.send(outcome); // the caller may be gone
            if let Some(queue) = missing {
                declare_again(&connection, &queue).await;
            }
        });
    }
}

/// The next job whose caller still waits. A caller that is gone publishes again if needed.
async fn next(left: &mut Option<Job>, jobs: &mut mpsc::Receiver<Job>) -> Option<Job> {
    loop {
        let job = match left.take() {
            Some(job) => job,
            None => jobs.recv().await?,
        };
        if !job.reply.is_closed() {
            return Some(job);
        }
    }
}

/// Declares one of our own queues again after it was deleted; the retry of the publication finds it.
async fn declare_again(connection: &Connection, queue: &str) {
    let declared = tokio::time::timeout(CONNECT_TIMEOUT, declare(connection, queue)).await;
    if let Ok(Err(error)) = declared {
        tracing::error!(target: "redrive::scheduler", %error, queue, "a required queue cannot be declared");
    }
}

fn lost(error: &lapin::Error) -> End {
    End::Lost(error.to_string())
}

/// Publishes to the default exchange with the queue name as routing key. Mandatory: the broker returns the message if the queue is missing.
async fn send(channel: &Channel, publication: &Publication) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = to_amqp(&publication.properties);
    channel
        .basic_publish(
            ShortString::default(),
            short(&publication.queue),
            options,
            &publication.body,
            properties,
        )
        .await?
        .await
}

/// Task id of a returned message.
fn id_of(message: &lapin::message::BasicReturnMessage) -> Option<String> {
    let headers = message.delivery.properties.headers().as_ref()?;
    let id = headers.inner().get(header::TASK)?.as_long_string()?;
    Some(String::from_utf8_lossy(id.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::properties::Properties;

    #[tokio::test]
    async fn jobs_without_a_waiting_caller_are_not_published() {
        let job = |id: &str| {
            let (reply, replied) = oneshot::channel();
            let publication = Publication {
                id: id.to_owned(),
                once: id.to_owned(),
                queue: "orders".to_owned(),
                body: Vec::new(),
                properties: Properties::default(),
            };
            (Job { publication, reply }, replied)
        };
        let (sender, mut jobs) = mpsc::channel(8);
        let mut left = Some(job("left").0);
        let mut waits = Vec::new();
        for (id, is_waited_for) in [("gone", false), ("first", true), ("gone too", false), ("second", true)] {
            let (job, replied) = job(id);
            sender.send(job).await.unwrap();
            waits.extend(is_waited_for.then_some(replied));
        }
        drop(sender);
        let mut published = Vec::new();
        while let Some(job) = next(&mut left, &mut jobs).await {
            published.push(job.publication.id);
        }
        assert_eq!(published, ["first", "second"]);
    }
}
