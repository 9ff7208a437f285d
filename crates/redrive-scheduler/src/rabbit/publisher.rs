//! Publishes, on a connection of its own, one channel for all, with many messages under way at once.

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

use super::broker::{Broker, Connected, LONGEST_CONNECT, Purpose, declare, is_soft, short};
use super::convert::{size, to_amqp};
use super::window::{Answer, Confirmed, Returned, Window};
use crate::header;
use crate::transport::{Publication, PublishError};

/// So many may be unconfirmed.
const WINDOW: usize = 2048;

/// What the broker never confirms stays known until the connection ends, which it does when there is so much of it.
const MOST_GIVEN_UP: usize = WINDOW / 2;

/// A larger body has a channel of its own: what the broker refuses for its size ends the channel, and all that is under way on it.
const LARGE: usize = 1 << 20;

/// How often in a row nothing more must be found: one look may end early when something changes meanwhile.
const LOOKS: u32 = 4;

/// How often it is looked whose time has run out, and whether the connection stands.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A connection that did not last so long is followed by a longer wait each time.
const SHORT_LIFE: Duration = Duration::from_secs(10);

/// Of so many in a row at the most: some seconds, because the broker is there.
const SHORT_LIVES: u32 = 6;

/// Frames have room for more than the properties.
const FRAME_OVERHEAD: usize = 64;

/// Something to publish.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) publication: Publication,
    pub(super) answer: Answer,
}

/// What others see of the publisher.
#[derive(Debug)]
pub(super) struct Shared {
    /// Whether something can be published.
    pub(super) ready: watch::Sender<bool>,
    pub(super) closing: watch::Sender<bool>,
    pub(super) ended: watch::Sender<bool>,
    pub(super) is_blocked: AtomicBool,
    pub(super) unconfirmed: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            ready: watch::Sender::new(false),
            closing: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            is_blocked: AtomicBool::new(false),
            unconfirmed: AtomicU64::new(0),
        }
    }
}

/// Why a connection is not used any more.
enum End {
    /// It is lost.
    Lost(String),
    /// Nobody wants it.
    Closed,
}

/// Keeps a connection up, and publishes on it, until it is closed.
pub(super) async fn run(
    broker: Arc<Broker>,
    shared: Arc<Shared>,
    mut jobs: mpsc::Receiver<Job>,
    confirm_timeout: Duration,
) {
    let mut closing = shared.closing.subscribe();
    // One that was taken when the connection turned out to be gone, and was not given to it.
    let mut left = None;
    // Connections in a row that did not last.
    let mut short_lived = 0;
    loop {
        let Connected { connection, opened: channel, .. } = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            connected = broker.connect(Purpose::Publish, |connection| async move { open(&connection).await }) => connected,
        };
        let since = Instant::now();
        let mut publisher = Publisher {
            broker: &broker,
            shared: &shared,
            connection: &connection,
            channel,
            window: Window::default(),
            confirm_timeout,
        };
        shared.ready.send_replace(true);
        let end = publisher.run(&mut jobs, &mut left).await;
        let why = if let End::Lost(why) = &end { why } else { "the connection was closed" };
        publisher.window.abandon(why);
        shared.ready.send_replace(false);
        shared.is_blocked.store(false, Ordering::Relaxed);
        shared.unconfirmed.store(0, Ordering::Relaxed);
        match end {
            End::Lost(why) => {
                tracing::warn!(target: "redrive::scheduler", why, "the connection to publish was lost");
                short_lived = if since.elapsed() < SHORT_LIFE { short_lived + 1 } else { 1 };
                tokio::time::sleep(broker.wait(Purpose::Publish, short_lived.min(SHORT_LIVES))).await;
            }
            End::Closed => {
                let _ = tokio::time::timeout(Duration::from_secs(2), connection.close(200, "closed".into()))
                    .await;
                break;
            }
        }
    }
    shared.ready.send_replace(true); // nobody waits for what will not come
    shared.ended.send_replace(true);
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
    window: Window,
    confirm_timeout: Duration,
}

impl Publisher<'_> {
    async fn run(&mut self, jobs: &mut mpsc::Receiver<Job>, left: &mut Option<Job>) -> End {
        let mut closing = self.shared.closing.subscribe();
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut news = std::pin::pin!(self.connection.events_listener());
        let mut under_way = FuturesUnordered::new();
        loop {
            let may_publish = self.window.len() < WINDOW && !self.connection.status().blocked();
            tokio::select! {
                biased;
                Some(first) = under_way.next() => {
                    // All that are there, and once more: what came before one that was seen is seen with it.
                    let mut all = vec![first];
                    let mut looks = 0;
                    while looks < LOOKS {
                        match under_way.next().now_or_never() {
                            Some(Some(more)) => all.push(more),
                            _ => looks += 1,
                        }
                    }
                    if let Err(error) = self.confirmed(all) {
                        return lost(&error);
                    }
                }
                event = news.next() => match event {
                    Some(lapin::Event::Error(error)) => return lost(&error),
                    Some(_) => self.look(),
                    None => return End::Lost("the connection has ended".to_owned()),
                },
                _ = closing.wait_for(|closing| *closing) => return End::Closed,
                _ = look.tick() => {
                    self.look();
                    if !self.connection.status().connected() || !self.channel.status().connected() {
                        return End::Lost("the channel has ended".to_owned());
                    }
                    if self.window.given_up() >= MOST_GIVEN_UP {
                        return End::Lost("too much is never confirmed".to_owned());
                    }
                }
                job = next(left, jobs), if may_publish => {
                    let Some(job) = job else { return End::Closed };
                    if !self.channel.status().connected() {
                        *left = Some(job); // it was not sent, so it is sent on the next one
                        return End::Lost("the channel has ended".to_owned());
                    }
                    if job.publication.body.len() > LARGE {
                        self.publish_large(job);
                    } else if let Some(job) = self.fitting(job) {
                        under_way.push(self.publish(job));
                    }
                }
            }
            self.shared.unconfirmed.store(self.window.len() as u64, Ordering::Relaxed);
        }
    }

    fn look(&mut self) {
        let is_blocked = self.connection.status().blocked();
        if self.shared.is_blocked.swap(is_blocked, Ordering::Relaxed) != is_blocked {
            tracing::warn!(target: "redrive::scheduler", is_blocked, "the broker says whether it takes messages");
            self.shared.ready.send_replace(!is_blocked);
        }
        if is_blocked {
            self.window.extend(Instant::now() + self.confirm_timeout);
        } else {
            self.window.give_up(Instant::now());
        }
    }

    /// Refuses what would end the connection, because its headers do not fit into a frame.
    fn fitting(&self, job: Job) -> Option<Job> {
        let frame = self.connection.configuration().frame_max() as usize;
        let bytes = size(&job.publication.properties) + FRAME_OVERHEAD;
        if frame == 0 || bytes <= frame {
            return Some(job);
        }
        let why = format!("its headers have about {bytes} bytes, and a frame has room for {frame}");
        let _ = job.answer.send(Err(PublishError::Refused { why }));
        None
    }

    /// Gives it to the broker when the future is polled first, which is in the order of publishing.
    fn publish(&mut self, job: Job) -> impl Future<Output = (u64, lapin::Result<Confirmation>)> + use<> {
        let Job { publication, answer } = job;
        let deadline = Instant::now() + self.confirm_timeout;
        let key = self.window.add(publication.id.clone(), publication.queue.clone(), answer, deadline);
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
        let mut unroutable = self.window.confirmed(seen);
        unroutable.retain(|queue| self.broker.is_own(queue));
        if let Some(queue) = unroutable.pop() {
            let connection = Arc::clone(self.connection);
            tokio::spawn(async move { declare_again(&connection, &queue).await });
        }
        lost
    }

    /// On a channel of its own, so that a refusal is its own affair.
    fn publish_large(&self, job: Job) {
        let (connection, limit) =
            (Arc::clone(self.connection), self.confirm_timeout.max(Duration::from_secs(60)));
        let Some(Job { publication, answer }) = self.fitting(job) else { return };
        let is_own = self.broker.is_own(&publication.queue);
        tokio::spawn(async move {
            let published = async {
                let channel = open(&connection).await?;
                let confirmation = send(&channel, &publication).await;
                let _ = channel.close(200, "published".into()).await; // it may be closed already
                confirmation
            };
            let unknown = |why: String| Err(PublishError::Unknown { why });
            let outcome = match tokio::time::timeout(limit, published).await {
                Ok(Ok(Confirmation::Ack(None))) => Ok(()),
                Ok(Ok(Confirmation::Ack(Some(message)))) => Err(PublishError::Unroutable {
                    queue: publication.queue,
                    why: format!("{} {}", message.reply_code, message.reply_text),
                }),
                Ok(Ok(_)) => unknown("the broker has refused it".to_owned()),
                Ok(Err(error)) if is_soft(&error, &[AMQPSoftError::PRECONDITIONFAILED]) => {
                    Err(PublishError::Refused { why: error.to_string() })
                }
                Ok(Err(error)) => unknown(error.to_string()),
                Err(_) => unknown("no confirmation in time".to_owned()),
            };
            let missing = match &outcome {
                Err(PublishError::Unroutable { queue, .. }) if is_own => Some(queue.clone()),
                _ => None,
            };
            let _ = answer.send(outcome); // whoever has gone away does not mind
            if let Some(queue) = missing {
                declare_again(&connection, &queue).await;
            }
        });
    }
}

/// The next that somebody waits for. Whoever has gone away publishes it again, or has given it up.
async fn next(left: &mut Option<Job>, jobs: &mut mpsc::Receiver<Job>) -> Option<Job> {
    loop {
        let job = match left.take() {
            Some(job) => job,
            None => jobs.recv().await?,
        };
        if !job.answer.is_closed() {
            return Some(job);
        }
    }
}

/// Somebody has deleted one of our own queues; what is tried again finds it.
async fn declare_again(connection: &Connection, queue: &str) {
    let declared = tokio::time::timeout(LONGEST_CONNECT, declare(connection, queue)).await;
    if let Ok(Err(error)) = declared {
        tracing::error!(target: "redrive::scheduler", %error, queue, "a queue that is needed cannot be declared");
    }
}

fn lost(error: &lapin::Error) -> End {
    End::Lost(error.to_string())
}

/// To the default exchange, where the routing key is the name of the queue; returned if there is none.
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

/// Our own id of a message that came back.
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
    async fn what_nobody_waits_for_any_more_is_not_published() {
        let job = |id: &str| {
            let (answer, answered) = oneshot::channel();
            let publication = Publication {
                id: id.to_owned(),
                once: id.to_owned(),
                queue: "orders".to_owned(),
                body: Vec::new(),
                properties: Properties::default(),
            };
            (Job { publication, answer }, answered)
        };
        let (sender, mut jobs) = mpsc::channel(8);
        let mut left = Some(job("left").0);
        let mut waits = Vec::new();
        for (id, is_waited_for) in [("gone", false), ("first", true), ("gone too", false), ("second", true)] {
            let (job, answered) = job(id);
            sender.send(job).await.unwrap();
            waits.extend(is_waited_for.then_some(answered));
        }
        drop(sender);
        let mut published = Vec::new();
        while let Some(job) = next(&mut left, &mut jobs).await {
            published.push(job.publication.id);
        }
        assert_eq!(published, ["first", "second"]);
    }
}
