//! The handler of one endpoint: signs an event, sends it, records the attempt and classifies the outcome.

use std::sync::Arc;
use std::time::Duration;

use redrive::handler::{BoxFuture, Handler};
use redrive::retry::{ClassifyError as _, Failure, Timestamp};
use redrive::{Event, EventId, Snooze};
use tokio::sync::mpsc;

use crate::attempt::{Attempt, Failed};
use crate::client::{Client, Message};
use crate::endpoint::{Endpoint, EndpointId};
use crate::health::Health;
use crate::record::AttemptRecord;

/// Snooze of a delivery that this machine had no file descriptor or memory to send.
const LOCAL_RESOURCES_SNOOZE: Duration = Duration::from_secs(2);

/// Consequence of an attempt that concerns the whole endpoint, sent to the background task.
#[derive(Debug)]
pub(crate) enum DeliverySignal {
    /// This version of the endpoint answered 410.
    Gone(EndpointId, u64),
    /// This machine ran out of file descriptors or memory.
    LocalResources(String),
    /// This version of the endpoint has been failing since this time.
    Failing(EndpointId, u64, Timestamp),
    /// The endpoint works again.
    Works(EndpointId),
}

/// Sends events to one version of an endpoint.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) client: Client,
    pub(crate) health: Arc<Health>,
    pub(crate) signals: mpsc::Sender<DeliverySignal>,
}

impl Handler for Target {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let (endpoint, client) = (Arc::clone(&self.endpoint), self.client.clone());
        let (health, signals) = (Arc::clone(&self.health), self.signals.clone());
        Box::pin(async move {
            if let Some(reason) = refusal(&endpoint) {
                return Err(reason.permanent());
            }
            let body = body(event.event_type().as_str(), event.created_at(), event.payload());
            let attempt = send(&client, &endpoint, event.id(), event.now(), &body).await;
            let attempt = attempt.expect("the newest secret of an endpoint never expires");
            if let Some(Failed::LocalResources { why }) = attempt.failed {
                let _ = signals.try_send(DeliverySignal::LocalResources(why));
                return Err(Failure::new(Snooze::new(LOCAL_RESOURCES_SNOOZE)));
            }
            event.record_detail(&AttemptRecord::new(endpoint.url.as_str(), &attempt));
            let (id, version) = (&endpoint.id, endpoint.version);
            let change = if attempt.is_success() {
                health.record_success().then(|| DeliverySignal::Works(id.clone()))
            } else {
                health
                    .record_failure(event.now())
                    .map(|since| DeliverySignal::Failing(id.clone(), version, since))
            };
            let gone = attempt.is_gone().then(|| DeliverySignal::Gone(id.clone(), version));
            for signal in change.into_iter().chain(gone) {
                let _ = signals.try_send(signal); // a full channel drops it; the next attempt repeats it
            }
            match (attempt.failure(), attempt.failed) {
                (Some(class), Some(failed)) => Err(Failure::new(failed).with_class(class)),
                _ => Ok(()),
            }
        })
    }
}

/// Reason why a removed or disabled endpoint receives nothing. Its deliveries are dead-lettered at once and can be replayed.
fn refusal(endpoint: &Endpoint) -> Option<String> {
    if endpoint.deleted_at.is_some() {
        return Some(format!("the endpoint {} was removed", endpoint.id));
    }
    let (why, since) = endpoint.disabled.as_ref()?;
    Some(format!("the endpoint was disabled {why}, at {since}; enable it, and replay its dead letters"))
}

/// Signs a body and sends it to the endpoint. `None` if the endpoint has no secret.
pub(crate) async fn send(
    client: &Client,
    endpoint: &Endpoint,
    id: EventId,
    now: Timestamp,
    body: &str,
) -> Option<Attempt> {
    let (id, secrets) = (id.to_string(), endpoint.signing(now)?);
    let message = Message { id: &id, timestamp: now.as_millis().div_euclid(1000), body: body.as_bytes() };
    Some(client.send(&endpoint.url, &secrets, &endpoint.headers, message, Some(endpoint.timeout)).await)
}

/// Message body as Standard Webhooks recommends it: `type`, `timestamp`, `data`. The payload is JSON and is inserted unchanged.
pub(crate) fn body(event_type: &str, created_at: Timestamp, payload: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("text always serialises");
    let timestamp = quoted(&created_at.to_string());
    format!(r#"{{"type":{},"timestamp":{timestamp},"data":{payload}}}"#, quoted(event_type))
}
