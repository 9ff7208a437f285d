//! The interface to a message broker: receive, ack and publish with publisher confirms.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::Serialize;

use crate::properties::Properties;

/// Future returned by the methods of a [`Transport`].
pub type TransportFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Connection to a message broker. An implementation reconnects by itself, forever.
///
/// A transport makes no decisions about messages; the scheduler does.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Waits for deliveries and returns those available, at most `max`. During an outage it waits for the connection; it returns an empty
    /// list only after [`stop_receiving`](Self::stop_receiving) or [`close`](Self::close). Dropping the future loses no delivery.
    fn receive(&self, max: usize) -> TransportFuture<'_, Vec<Delivery>>;

    /// Acknowledges stored deliveries. Returns whether the acks were sent; if not, or if the ack is lost, it redelivers them.
    fn ack(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool>;

    /// Publishes a message to a queue and waits for the publisher confirm. Waits while there is no connection; call
    /// [`ready`](Self::ready) first to separate that wait.
    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>>;

    /// Waits until publishing is possible, or the transport is closed.
    fn ready(&self) -> TransportFuture<'_, ()>;

    /// State of the connections.
    fn state(&self) -> TransportState;

    /// Stops receiving and ends a pending [`receive`](Self::receive). Ack and publish continue to work.
    fn stop_receiving(&self);

    /// Closes all connections. The broker redelivers unacked messages to any consumer.
    fn close(&self) -> TransportFuture<'_, ()>;
}

/// A message received from the broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Receipt to ack it with.
    pub receipt: Receipt,
    /// Body.
    pub body: Vec<u8>,
    /// Properties and headers.
    pub properties: Properties,
    /// Whether the broker marks it as possibly delivered before.
    pub redelivered: bool,
    /// Original queue, if a header of the message names it and it is not a `RetryMessage`.
    pub source: Option<String>,
    /// Unique id of the message at the broker (its position in a stream), the same on redelivery. Without it, redeliveries are only
    /// recognised by content.
    pub identity: Option<String>,
}

/// Identifies a delivery for its ack. The numbers are opaque outside the transport.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// Connection of the delivery. The receipt may be invalid after it.
    pub epoch: u64,
    /// Delivery on that connection.
    pub tag: u64,
}

/// A message to be published.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// Id of the task, the same over all attempts to publish it; sent in the header `redrive-task`.
    pub id: String,
    /// Deduplication id for brokers that drop duplicates. A release from review has a new one.
    pub once: String,
    /// Destination queue.
    pub queue: String,
    /// Body.
    pub body: Vec<u8>,
    /// Properties and headers.
    pub properties: Properties,
}

/// A publication failed, or its outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The queue does not exist. The broker does not have the message.
    #[error("queue {queue:?} does not exist ({why}): declare it, or correct the name")]
    Unroutable {
        /// The queue.
        queue: String,
        /// Answer of the broker.
        why: String,
    },
    /// The broker refuses the message permanently, and does not have it.
    #[error("the broker refuses the message: {why}")]
    Refused {
        /// Answer of the broker.
        why: String,
    },
    /// The broker may or may not have the message. It is published again with the same id.
    #[error(
        "it is unknown whether the broker has the message ({why}): it is published again with the same id"
    )]
    Unknown {
        /// The reason.
        why: String,
    },
}

/// State of a transport's connections.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportState {
    /// Whether the consumer is connected.
    pub consuming: bool,
    /// Whether publishing is possible.
    pub publishing: bool,
    /// Whether the broker blocks publishers because it is short of memory or disk.
    pub blocked: bool,
    /// Number of connections made so far, for consuming and publishing.
    pub connects: u64,
    /// Deliveries not yet acked.
    pub unacked: u64,
    /// Publications not yet confirmed.
    pub unconfirmed: u64,
}
