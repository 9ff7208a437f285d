//! Publishes, and says what the server's answers mean.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError as NatsError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode};

use super::convert::to_nats;
use super::server::{Server, Up};
use super::{NatsSettings, topology};
use crate::transport::{Publication, PublishError};

/// Publishes messages.
pub(super) struct Publisher {
    server: Arc<Server>,
    settings: NatsSettings,
    unconfirmed: AtomicU64,
}

/// Counted until it is dropped, whatever becomes of it.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn one_of(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Publisher {
    pub(super) fn new(server: Arc<Server>, settings: NatsSettings) -> Self {
        Publisher { server, settings, unconfirmed: AtomicU64::new(0) }
    }

    pub(super) fn unconfirmed(&self) -> u64 {
        self.unconfirmed.load(Ordering::Relaxed)
    }

    /// Waits for a connection, and then until a stream has the message.
    pub(super) async fn publish(&self, publication: Publication) -> Result<(), PublishError> {
        if let Err(rule) = topology::subject(&publication.queue) {
            let why = format!("nothing can be published to {:?}: {rule}", publication.queue);
            return Err(PublishError::Refused { why });
        }
        let unknown = |why: &str| Err(PublishError::Unknown { why: why.to_owned() });
        let Some(up) = self.server.up().await else { return unknown("the connection was closed") };
        let _counted = Counted::one_of(&self.unconfirmed);
        tokio::select! {
            biased;
            outcome = self.send(&up, publication) => outcome,
            // The answer would come by that connection. The next one may still bring the message: it has the same id.
            () = self.server.lost(up.epoch) => unknown("the connection was lost"),
        }
    }

    async fn send(&self, up: &Up, publication: Publication) -> Result<(), PublishError> {
        let headers = to_nats(&publication);
        let Publication { queue, body, .. } = publication;
        let message = PublishMessage::build().headers(headers).payload(body.into());
        let answered = match up.wire.publishing.send_publish(queue.clone(), message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        let Err(error) = answered else { return Ok(()) }; // a duplicate is there as well
        let outcome = match error.kind() {
            PublishErrorKind::StreamNotFound => self.unheard(up, queue, "no stream takes this subject").await,
            PublishErrorKind::MaxPayloadExceeded => PublishError::Refused { why: said(&error) },
            // Where somebody listens, the server does not say that there is no stream.
            PublishErrorKind::TimedOut => {
                self.unheard(
                    up,
                    queue,
                    "no stream takes this subject; whoever listens without one may have heard it",
                )
                .await
            }
            PublishErrorKind::Other if is_for_its_own_sake(&error) => {
                PublishError::Refused { why: said(&error) }
            }
            _ => PublishError::Unknown { why: said(&error) },
        };
        if matches!(&outcome, PublishError::Unroutable { queue, .. } if *queue == self.settings.review_subject)
        {
            // Somebody has deleted it; what is tried again finds it.
            if let Err(error) = topology::review_stream(&up.wire.context, &self.settings).await {
                tracing::error!(target: "redrive::scheduler", %error, "the stream for review cannot be made");
            }
        }
        Err(outcome)
    }

    /// Nobody has answered. A stream that is there may be without a leader for a moment, so it is asked for.
    async fn unheard(&self, up: &Up, queue: String, why: &str) -> PublishError {
        match up.wire.context.stream_by_subject(queue.clone()).await {
            Ok(stream) => PublishError::Unknown { why: format!("stream {stream} has not answered") },
            Err(error) if matches!(error.kind(), GetStreamByNameErrorKind::NotFound) => {
                PublishError::Unroutable { queue, why: why.to_owned() }
            }
            Err(error) => PublishError::Unknown {
                why: format!("nobody has answered, and the server does not say why: {error}"),
            },
        }
    }
}

/// Whether it is the message that is wrong, or a stream that takes none, and not the moment.
fn is_for_its_own_sake(error: &NatsError) -> bool {
    let said = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    said.is_some_and(|said| {
        [
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
            ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM,
            ErrorCode::STREAM_SEALED,
        ]
        .contains(&said.error_code())
    })
}

/// With what is behind it.
fn said(error: &NatsError) -> String {
    match error.source() {
        Some(source) => format!("{}: {source}", error.kind()),
        None => error.kind().to_string(),
    }
}
