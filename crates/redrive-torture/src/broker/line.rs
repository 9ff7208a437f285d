//! Connects the harness's own clients to the broker: reconnects when the connection is lost and confirms every message.

use std::time::Duration;

use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

/// Timeout of an operation of the broker; then the connection is dropped.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Line {
    url: String,
    open: Option<(Connection, Channel)>,
}

/// A message that was fetched and not acknowledged.
#[derive(Debug)]
pub(super) struct Fetched(Delivery);

impl Fetched {
    pub(super) fn body(&self) -> &[u8] {
        &self.0.data
    }

    /// Whether the broker marks it as redelivered.
    pub(super) fn is_again(&self) -> bool {
        self.0.redelivered
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.0.properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            AMQPValue::ShortString(text) => Some(text.to_string()),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        match self.0.properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongInt(number) => Some(i64::from(*number)),
            AMQPValue::LongLongInt(number) => Some(*number),
            AMQPValue::LongUInt(number) => Some(i64::from(*number)),
            AMQPValue::ShortInt(number) => Some(i64::from(*number)),
            AMQPValue::ShortShortInt(number) => Some(i64::from(*number)),
            _ => None,
        }
    }

    /// Acknowledges the message; if the acknowledgement is lost, the message is redelivered.
    pub(super) async fn acknowledge(&self) {
        let _ = tokio::time::timeout(TIMEOUT, self.0.ack(BasicAckOptions::default())).await;
    }
}

fn short(name: &str) -> ShortString {
    ShortString::try_new(name).unwrap_or_default()
}

impl Line {
    pub(super) fn new(url: &str) -> Self {
        Line { url: url.to_owned(), open: None }
    }

    async fn channel(&mut self) -> Option<&Channel> {
        if self.open.as_ref().is_some_and(|(_, channel)| !channel.status().connected()) {
            self.open = None;
        }
        if self.open.is_none() {
            let open = async {
                let connection =
                    Connection::connect(&self.url, ConnectionProperties::default()).await.ok()?;
                let channel = connection.create_channel().await.ok()?;
                channel.confirm_select(ConfirmSelectOptions::default()).await.ok()?;
                Some((connection, channel))
            };
            self.open = tokio::time::timeout(TIMEOUT, open).await.ok().flatten();
        }
        self.open.as_ref().map(|(_, channel)| channel)
    }

    /// Sends a message until the broker confirms it, or until `may_send` refuses another try.
    pub(super) async fn send(
        &mut self,
        queue: &str,
        body: &[u8],
        properties: &BasicProperties,
        may: impl Fn() -> bool,
    ) -> bool {
        while may() {
            let sent = async {
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let channel = self.channel().await?;
                let sent = channel
                    .basic_publish(ShortString::default(), short(queue), options, body, properties.clone())
                    .await
                    .ok()?;
                sent.await.ok().filter(|confirmed| *confirmed == Confirmation::Ack(None))
            };
            match tokio::time::timeout(TIMEOUT, sent).await {
                Ok(Some(_)) => return true,
                Ok(None) => tokio::time::sleep(RETRY_DELAY).await,
                Err(_) => self.open = None,
            }
        }
        false
    }

    /// The next message of a queue, if there is one and the broker can be reached.
    pub(super) async fn fetch(&mut self, queue: &str) -> Option<Fetched> {
        let fetched = async {
            let channel = self.channel().await?;
            channel.basic_get(short(queue), BasicGetOptions::default()).await.ok()
        };
        match tokio::time::timeout(TIMEOUT, fetched).await {
            Ok(Some(Some(message))) => Some(Fetched(message.delivery)),
            Ok(Some(None)) => None,
            Ok(None) => {
                self.open = None; // a missing queue closes the channel, too
                tokio::time::sleep(RETRY_DELAY).await;
                None
            }
            Err(_) => {
                self.open = None;
                None
            }
        }
    }

    /// Declares a queue. A quorum queue confirms only messages on disk, so a loss is not the broker's.
    pub(super) async fn declare(&mut self, queue: &str, is_quorum: bool) -> Result<(), String> {
        let mut arguments = FieldTable::default();
        if is_quorum {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let Some(channel) = self.channel().await else { return Err("the broker cannot be reached".into()) };
        let declared = channel.queue_declare(short(queue), options, arguments).await;
        declared.map(drop).map_err(|error| error.to_string())
    }

    /// Deletes a queue if nothing is in it; says whether it did.
    pub(super) async fn delete_if_empty(&mut self, queue: &str) -> bool {
        let options = QueueDeleteOptions { if_empty: true, ..QueueDeleteOptions::default() };
        let Some(channel) = self.channel().await else { return false };
        let deleted = channel.queue_delete(short(queue), options).await.is_ok();
        if !deleted {
            self.open = None;
        }
        deleted
    }
}
