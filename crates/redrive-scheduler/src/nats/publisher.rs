//! Publishes to JetStream and classifies the server's answers.

use std::error::Error;
use std::sync::Arc;

use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError as NatsError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode};

use super::convert::to_nats;
use super::server::{Server, Up};
use super::topology;
use crate::transport::{Publication, PublishError};

/// Publishes messages and waits for the stream's publish ack.
pub(super) struct Publisher {
    server: Arc<Server>,
    /// Every unconfirmed publication holds a clone, so the reference count counts them, also when a caller stops waiting.
    unconfirmed: Arc<()>,
}

impl Publisher {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Publisher { server, unconfirmed: Arc::default() }
    }

    pub(super) fn unconfirmed(&self) -> u64 {
        Arc::strong_count(&self.unconfirmed) as u64 - 1
    }

    /// Waits for a connection, publishes, and waits until a stream has stored the message.
    pub(super) async fn publish(&self, publication: Publication) -> Result<(), PublishError> {
        if let Err(rule) = topology::subject(&publication.queue) {
            let why = format!("nothing can be published to {:?}: {rule}", publication.queue);
            return Err(PublishError::Refused { why });
        }
        let unknown = |why: &str| Err(PublishError::Unknown { why: why.to_owned() });
        let Some(up) = self.server.up().await else { return unknown("the connection was closed") };
        let _counted = Arc::clone(&self.unconfirmed);
        tokio::select! {
            biased;
            outcome = self.send(&up, publication) => outcome,
            // The ack is lost with the connection; the message may be stored. The retry has the same id.
            () = self.server.lost(up.epoch) => unknown("the connection was lost"),
        }
    }

    async fn send(&self, up: &Up, publication: Publication) -> Result<(), PublishError> {
        let headers = to_nats(&publication);
        let Publication { queue, body, .. } = publication;
        let message = PublishMessage::build().headers(headers).payload(body.into());
        let answered = match up.connection.publishing.send_publish(queue.clone(), message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        let Err(error) = answered else { return Ok(()) }; // a duplicate is stored as well
        let outcome = match error.kind() {
            PublishErrorKind::StreamNotFound => {
                self.without_ack(up, queue, "no stream has this subject").await
            }
            PublishErrorKind::MaxPayloadExceeded => PublishError::Refused { why: describe(&error) },
            // If there are plain subscribers, the server does not report the missing stream.
            PublishErrorKind::TimedOut => {
                self.without_ack(
                    up,
                    queue,
                    "no stream has this subject; plain subscribers may have received it",
                )
                .await
            }
            PublishErrorKind::Other if is_refusal(&error) => PublishError::Refused { why: describe(&error) },
            _ => PublishError::Unknown { why: describe(&error) },
        };
        if matches!(&outcome, PublishError::Unroutable { queue, .. } if *queue == self.server.settings.review_subject)
        {
            // It was deleted; the retry finds it recreated.
            if let Err(error) = topology::review_stream(&up.connection.context, &self.server.settings).await {
                tracing::error!(target: "redrive::scheduler", %error, "the review stream cannot be created");
            }
        }
        Err(outcome)
    }

    /// Classifies a publication without an ack: unroutable if no stream has the subject, otherwise unknown (the stream may lack a leader).
    async fn without_ack(&self, up: &Up, queue: String, why: &str) -> PublishError {
        match up.connection.context.stream_by_subject(queue.clone()).await {
            Ok(stream) => PublishError::Unknown { why: format!("stream {stream} did not answer") },
            Err(error) if matches!(error.kind(), GetStreamByNameErrorKind::NotFound) => {
                PublishError::Unroutable { queue, why: why.to_owned() }
            }
            Err(error) => PublishError::Unknown {
                why: format!("no stream answered, and the stream lookup failed: {error}"),
            },
        }
    }
}

/// Whether the stream refuses the message permanently.
fn is_refusal(error: &NatsError) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    cause.is_some_and(|cause| {
        [
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
            ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM,
            ErrorCode::STREAM_SEALED,
        ]
        .contains(&cause.error_code())
    })
}

/// Error text with its source.
fn describe(error: &NatsError) -> String {
    match error.source() {
        Some(source) => format!("{}: {source}", error.kind()),
        None => error.kind().to_string(),
    }
}
