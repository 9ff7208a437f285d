//! One endpoint as a handler of events.

use std::sync::Arc;
use std::time::Duration;

use redrive::{BoxFuture, ClassifyError as _, Event, Failure, Handler, NotNow};
use tokio::sync::mpsc;

use crate::attempt::{Attempt, Failed};
use crate::client::Client;
use crate::endpoint::{Endpoint, EndpointId};
use crate::health::{Health, News};
use crate::message::Message;
use crate::record::AttemptRecord;

/// What could not be sent because this machine has nothing left is put off for so long.
const UNTIL_THERE_IS_ROOM: Duration = Duration::from_secs(2);

/// What the rest of the server is to know of an attempt.
#[derive(Debug)]
pub(crate) enum Notice {
    /// It has answered 410, in this version.
    Gone(EndpointId, u64),
    /// This machine has nothing left to send with.
    NoRoom(String),
    /// How it does, in this version.
    Health(EndpointId, u64, News),
}

/// Sends events to one endpoint, as it was when this was made.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) client: Client,
    pub(crate) health: Arc<Health>,
    pub(crate) notices: mpsc::Sender<Notice>,
}

impl Handler for Target {
    fn handle(&self, event: Event) -> BoxFuture<Result<(), Failure>> {
        let (endpoint, client) = (Arc::clone(&self.endpoint), self.client.clone());
        let (health, notices) = (Arc::clone(&self.health), self.notices.clone());
        Box::pin(async move {
            if let Some(reason) = closed(&endpoint) {
                return Err(reason.permanent());
            }
            let attempt = send(&client, &endpoint, &event).await;
            if let Some(Failed::NoRoom { why }) = attempt.failed {
                let _ = notices.try_send(Notice::NoRoom(why));
                return Err(Failure::new(NotNow::for_the_next(UNTIL_THERE_IS_ROOM)));
            }
            event.tell(&AttemptRecord::new(endpoint.url.as_str(), &attempt));
            let news = if attempt.is_success() { health.succeeded() } else { health.failed(event.now()) };
            // Whoever reads them is behind only if the database is: then the next attempt says it again.
            if let Some(news) = news {
                let _ = notices.try_send(Notice::Health(endpoint.id.clone(), endpoint.version, news));
            }
            if attempt.is_gone() {
                let _ = notices.try_send(Notice::Gone(endpoint.id.clone(), endpoint.version));
            }
            match (attempt.failure(), attempt.failed) {
                (Some(class), Some(failed)) => Err(Failure::new(failed).with_class(class)),
                _ => Ok(()),
            }
        })
    }
}

/// Why nothing is sent, if nothing is. What it misses goes to the dead-letter queue at once, and can be replayed.
fn closed(endpoint: &Endpoint) -> Option<String> {
    if endpoint.deleted_at.is_some() {
        return Some(format!("the endpoint {} was removed", endpoint.id));
    }
    let (why, since) = endpoint.disabled.as_ref()?;
    Some(format!("the endpoint was disabled {why}, at {since}; enable it, and replay what it has missed"))
}

async fn send(client: &Client, endpoint: &Endpoint, event: &Event) -> Attempt {
    let now = event.now();
    let id = event.id().to_string();
    let body = body(event.event_type().as_str(), &event.created_at().to_string(), event.payload());
    let message = Message { id: &id, timestamp: now.as_millis().div_euclid(1000), body: body.as_bytes() };
    let secrets = endpoint.signing(now).expect("the newest secret of an endpoint never ends");
    client.send(&endpoint.url, &secrets, &endpoint.headers, message, Some(endpoint.timeout)).await
}

/// As the standard recommends it: type, time, data. The payload is JSON already, and is sent as it was published.
pub(crate) fn body(event_type: &str, created_at: &str, payload: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("text always serialises");
    format!(r#"{{"type":{},"timestamp":{},"data":{payload}}}"#, quoted(event_type), quoted(created_at))
}
