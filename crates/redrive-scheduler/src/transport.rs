//! The one seam to a broker.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::Serialize;

use crate::properties::Properties;

/// What the methods of a transport return.
pub type TransportFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes failed messages from a broker, and brings messages to it. Whoever implements it keeps connections up for ever, by itself.
///
/// Nothing here decides what becomes of a message: that is the engine's affair.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Waits for a delivery, and returns it with those that are there as well, `most` in all. While the broker is away it waits and
    /// connects again; it returns nothing only when the transport was closed. Whoever drops the future loses nothing.
    fn receive(&self, most: usize) -> TransportFuture<'_, Vec<Delivery>>;

    /// Tells the broker that these are stored and need not be delivered again. Says whether it could be told; if not, or if
    /// that got lost, they are delivered again.
    fn accept(&self, receipts: Vec<Receipt>) -> TransportFuture<'_, bool>;

    /// Brings a message to a queue, and waits until the broker has confirmed that it is in it. Waits while there is no connection;
    /// whoever wants to know when that is over asks [`ready`](Self::ready) first.
    fn publish(&self, publication: Publication) -> TransportFuture<'_, Result<(), PublishError>>;

    /// Waits until something can be published, or the transport is closed.
    fn ready(&self) -> TransportFuture<'_, ()>;

    /// How the connections stand.
    fn state(&self) -> TransportState;

    /// Receives nothing more: whoever waits for a delivery gets none. Accepting and publishing go on.
    fn stop_receiving(&self);

    /// Ends everything. What was delivered and not accepted is delivered again, to whomever.
    fn close(&self) -> TransportFuture<'_, ()>;
}

/// A message as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// To accept it by.
    pub receipt: Receipt,
    /// Its bytes.
    pub body: Vec<u8>,
    /// What it carries beside them.
    pub properties: Properties,
    /// Whether it may have been delivered before. A broker that cannot know says yes only if it was.
    pub redelivered: bool,
    /// The queue it failed in, if it says so itself and is not a `RetryMessage`.
    pub source: Option<String>,
    /// By what the broker knows the message whenever it delivers it, and no other message: its place in a stream. Where there is
    /// none, a message that is delivered again can only be guessed.
    pub identity: Option<String>,
}

/// By what the broker knows a delivery. What the numbers are is the transport's affair.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// Which connection: after it, the receipt is worth nothing.
    pub epoch: u64,
    /// Which delivery on it.
    pub tag: u64,
}

/// A message to be published.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// What it is known by while it is under way. The same over all attempts to publish it; stands in the header `redrive-task`.
    pub id: String,
    /// The same for what must be in its queue once only, and another one if a person sends it once more: for brokers that drop what
    /// they have already.
    pub once: String,
    /// The queue.
    pub queue: String,
    /// Its bytes.
    pub body: Vec<u8>,
    /// What it carries beside them.
    pub properties: Properties,
}

/// Why it is not known to be in its queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker has said that there is no such queue. The message is nowhere.
    #[error("queue {queue:?} does not exist ({why}): declare it, or correct the name")]
    Unroutable {
        /// Which.
        queue: String,
        /// What the broker said.
        why: String,
    },
    /// The broker will not have this message, whenever it is asked. The message is nowhere.
    #[error("the broker refuses the message: {why}")]
    Refused {
        /// What it said.
        why: String,
    },
    /// It may or may not be there. It is published again, with the same id.
    #[error(
        "it is unknown whether the broker has the message ({why}): it is published again with the same id"
    )]
    Unknown {
        /// What happened.
        why: String,
    },
}

/// How a transport's connections stand.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportState {
    /// Whether deliveries come in.
    pub consuming: bool,
    /// Whether something can be published.
    pub publishing: bool,
    /// Whether the broker is short of memory or disk, and takes nothing.
    pub blocked: bool,
    /// How often a connection was made, of either kind.
    pub connects: u64,
    /// How many deliveries wait to be accepted.
    pub unaccepted: u64,
    /// How many messages wait for their confirmation.
    pub unconfirmed: u64,
}
