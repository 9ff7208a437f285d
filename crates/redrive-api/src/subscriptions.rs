//! `/v1/subscriptions`: pull consumers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::client::{Call, Paged, Repeat, Result, encoded, requests};
use crate::open_enum::open_enum;
use crate::page::{List, Page, PageQuery};
use crate::retry::Retry;
use crate::time::Time;

/// Maximum number of leases of one request, and of events of one pull.
pub const MAX_LEASES: usize = 100;

/// A pull subscription to create or change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSubscription {
    /// Event types; `*` in a pattern matches one or more characters.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 100, example = json!(["order.*"])))]
    pub patterns: Vec<String>,
    /// Lease of a pulled event; 30 s by default.
    #[cfg_attr(feature = "schema", schema(minimum = 100, maximum = 43_200_000))]
    pub lease_ms: Option<u64>,
    /// Overrides of the server's retry policy.
    pub retry: Option<Retry>,
}

impl PutSubscription {
    /// A subscription to these patterns, with the server's lease and retry policy.
    pub fn new<P: Into<String>>(patterns: impl IntoIterator<Item = P>) -> Self {
        PutSubscription {
            patterns: patterns.into_iter().map(Into::into).collect(),
            lease_ms: None,
            retry: None,
        }
    }
}

/// A pull subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Subscription {
    /// Name of the subscription.
    pub name: String,
    /// Event types.
    pub patterns: Vec<String>,
    /// Lease of a pulled event.
    pub lease_ms: u64,
    /// Overrides of the server's retry policy.
    pub retry: Option<Retry>,
    /// The time at which the subscription was created.
    pub created_at: Time,
    /// The time of the last change of the subscription.
    pub updated_at: Time,
}

/// Options of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// At most this many events; 10 by default.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100))]
    pub max: Option<usize>,
    /// Time to wait for the first event; none by default.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 30_000))]
    pub wait_ms: Option<u64>,
    /// Lease of each event; that of the subscription by default.
    #[cfg_attr(feature = "schema", schema(minimum = 100, maximum = 43_200_000))]
    pub lease_ms: Option<u64>,
}

/// A pulled event. No other consumer gets it until the lease ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeasedEvent {
    /// Names the lease in ack, nack and extend.
    pub lease: String,
    /// When the lease ends.
    pub leased_until: Time,
    /// Id of the event.
    pub id: Uuid,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The payload as it was published.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub payload: Box<RawValue>,
    /// Additional texts by name.
    pub metadata: BTreeMap<String, String>,
    /// The time at which the event was published.
    pub created_at: Time,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Attempts in total.
    pub max_attempts: u32,
}

impl LeasedEvent {
    /// Reads the payload as JSON.
    ///
    /// ```
    /// # fn read(event: &redrive_api::subscriptions::LeasedEvent) -> serde_json::Result<()> {
    /// #[derive(serde::Deserialize)]
    /// struct Order { order: u32 }
    ///
    /// let Order { order } = event.json()?;
    /// println!("order {order}");
    /// # Ok(()) }
    /// ```
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(self.payload.get())
    }
}

/// Leases of handled events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Ack {
    /// The leases of the pulled events.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 100))]
    pub leases: Vec<String>,
}

open_enum! {
    /// Effect of a nack.
    pub enum NackOutcome {
        /// The attempt failed: the retry policy decides between another attempt and the dead-letter queue.
        Failed = "failed",
        /// No attempt is charged: the event is delivered again after `delay_ms`.
        Snooze = "snooze",
        /// No attempt can succeed: the event goes to the dead-letter queue at once.
        Permanent = "permanent",
    }
}

/// Leases of events that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Nack {
    /// The leases of the pulled events.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 100))]
    pub leases: Vec<String>,
    /// Effect on the events; `failed` by default.
    pub outcome: Option<NackOutcome>,
    /// Shortest wait before the next delivery; decided by the retry policy by default. A snooze needs it, a permanent failure has none.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 86_400_000))]
    pub delay_ms: Option<u64>,
    /// Recorded as the error of the attempt. A snooze records none.
    #[cfg_attr(feature = "schema", schema(max_length = 4096))]
    pub reason: Option<String>,
}

/// Leases to extend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Extend {
    /// The leases of the pulled events.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 100))]
    pub leases: Vec<String>,
    /// Length of the lease from now on.
    #[cfg_attr(feature = "schema", schema(minimum = 100, maximum = 43_200_000))]
    pub lease_ms: u64,
}

/// Result of ack, nack or extend, per lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeaseResults {
    /// Number of leases for which it worked.
    pub done: usize,
    /// Leases that had ended: their events are delivered again.
    pub lost: Vec<String>,
}

requests! {
    /// Requests on `/v1/subscriptions`.
    Subscriptions,
    /// Manages pull subscriptions and pulls events.
    subscriptions
}

impl Subscriptions<'_> {
    /// Creates or changes a subscription.
    pub async fn put(&self, name: &str, subscription: &PutSubscription) -> Result<Subscription> {
        self.0.put(&path(name, ""), subscription).await
    }

    /// Returns one page of subscriptions in the order of their names.
    pub async fn list(&self, page: &PageQuery) -> Result<Page<Subscription>> {
        self.0.get("/v1/subscriptions", page).await
    }

    /// Iterates over all subscriptions in the order of their names.
    pub fn all(&self) -> Paged<Subscription> {
        self.0.all("/v1/subscriptions", &())
    }

    /// Returns one subscription.
    pub async fn get(&self, name: &str) -> Result<Subscription> {
        self.0.get(&path(name, ""), &()).await
    }

    /// Removes a subscription; its open deliveries are dead-lettered.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(&path(name, "")).await
    }

    /// Pulls events, each under a lease.
    pub async fn pull(&self, name: &str, how: &Pull) -> Result<List<LeasedEvent>> {
        // After a lost response the events are leased, and a repetition would wait for others.
        let wait = Duration::from_millis(how.wait_ms.unwrap_or(0));
        self.0.send(&Call::post(&path(name, "/pull"), how)?.server_wait(wait)).await
    }

    /// Settles events as handled. A repeated ack whose first response was lost names its leases as lost.
    pub async fn ack(&self, name: &str, ack: &Ack) -> Result<LeaseResults> {
        self.settle(&path(name, "/ack"), ack).await
    }

    /// Settles events as failed.
    pub async fn nack(&self, name: &str, nack: &Nack) -> Result<LeaseResults> {
        self.settle(&path(name, "/nack"), nack).await
    }

    /// Extends leases.
    pub async fn extend(&self, name: &str, extend: &Extend) -> Result<LeaseResults> {
        self.settle(&path(name, "/extend"), extend).await
    }

    /// Sends a request about leases: a repetition finds them ended, or does the same again.
    async fn settle(&self, path: &str, body: &impl Serialize) -> Result<LeaseResults> {
        self.0.send(&Call::post(path, body)?.repeat(Repeat::Always)).await
    }
}

fn path(name: &str, rest: &str) -> String {
    format!("/v1/subscriptions/{}{rest}", encoded(name))
}
