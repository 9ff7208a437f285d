//! The bucket on the server: what is asked of it, and what its answers mean.

use std::error::Error;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::connection::State as Connection;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{
    ContextBuilder, GetStreamErrorKind, PublishErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, LastRawMessageErrorKind, PurgeErrorKind, StorageType, Stream,
};
use async_nats::jetstream::{self, Context, ErrorCode, Message};
use futures_util::StreamExt;
use redrive_retry::Timestamp;
use redrive_retry::idempotency::{IdempotencyError, IdempotencyKey};

use crate::entry::{Entry, Value, stamp};
use crate::error::NatsError;
use crate::name;
use crate::options::{NatsOptions, Storage};

/// After so many milliseconds from its stamp on, an entry may be deleted. In a header: who cleans up reads no results.
const EXPIRES_AFTER: &str = "Redrive-Expires-After-Ms";

/// Older servers that share a bucket let several writers of the same moment win
/// ([nats-server 4320](https://github.com/nats-io/nats-server/issues/4320)).
const COMPARES: [i64; 3] = [2, 9, 21];

/// More than our headers take.
const HEADERS: usize = 512;

/// So many entries are looked at by one request.
const PAGE: usize = 500;

/// What is written while somebody counts may be counted twice, and then a page is never full.
const LONGEST_PAGE: Duration = Duration::from_secs(1);

/// So soon somebody is asked again who is not known yet.
const AGAIN: Duration = Duration::from_millis(20);

/// After so long without a request the server forgets who was looking.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// What came of a write, or of removing something.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    /// The key is no longer what it was.
    Conflict,
    /// No answer came. It may have been written, or may yet be.
    Unknown,
}

/// An entry that nobody needs.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) name: String,
    pub(crate) revision: u64,
}

/// A bucket that is open.
#[derive(Debug)]
pub(crate) struct Bucket {
    client: Client,
    context: Context,
    stream: Stream,
    /// Before every name, with the dot.
    prefix: String,
    max_age: Option<Duration>,
    timeout: Duration,
    /// Of a whole message, as the bucket has it; the server has one, too.
    max_message: Option<usize>,
}

impl Bucket {
    /// Opens it; makes it if it is not there.
    pub(crate) async fn open(client: Client, options: &NatsOptions) -> Result<Self, NatsError> {
        let context = ContextBuilder::new().timeout(options.timeout).build(client.clone());
        let failed =
            |source: redrive_retry::BoxError| NatsError::Bucket { bucket: options.bucket.clone(), source };
        let stream = match context.get_stream(format!("KV_{}", options.bucket)).await {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(no) if no.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    compares(&client, options.replicas)?;
                    context.create_stream(config(options)).await.map_err(|error| failed(error.into()))?
                }
                _ => return Err(failed(error.into())),
            },
        };
        check(&stream, options)?;
        compares(&client, stream.cached_info().config.num_replicas)?;
        let config = &stream.cached_info().config;
        Ok(Bucket {
            max_age: Some(config.max_age).filter(|age| !age.is_zero()),
            max_message: usize::try_from(config.max_message_size).ok().filter(|most| *most > 0),
            prefix: format!("$KV.{}.", options.bucket),
            timeout: options.timeout,
            client,
            context,
            stream,
        })
    }

    /// What the server deletes after so long.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        self.max_age
    }

    /// Reads what is under this name, from whoever leads the stream: another server may not have heard of it yet.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<Entry>, NatsError> {
        let message = self.message(name).await?;
        message.map(|message| Entry::read(&message, self.max_age)).transpose()
    }

    /// Writes a value if the last revision under this name is still this one; 0 stands for none.
    pub(crate) async fn write(
        &self,
        key: &IdempotencyKey,
        name: &str,
        value: &Value,
        revision: u64,
    ) -> Result<Written, IdempotencyError> {
        let json = value.to_json();
        let limit =
            self.max_message.map_or(self.client.max_payload(), |most| most.min(self.client.max_payload()));
        let limit = limit.saturating_sub(HEADERS);
        if json.len() > limit {
            return Err(IdempotencyError::TooLarge { key: key.clone(), bytes: json.len(), limit });
        }
        let message = PublishMessage::build()
            .header(EXPIRES_AFTER, value.expires_after_ms().to_string())
            .expected_last_subject_sequence(revision)
            .payload(json.into());
        Ok(self.publish(name, message).await?)
    }

    /// Removes what is under this name, if it is still this revision.
    ///
    /// Not by a mark that says *deleted*, which would stay: the server purges the name up to this revision.
    pub(crate) async fn remove(&self, name: &str, revision: u64) -> Result<Written, NatsError> {
        self.connected()?;
        let purge = self.stream.purge().filter(self.subject(name)).sequence(revision.saturating_add(1));
        match purge.await {
            Ok(done) if done.purged > 0 => Ok(Written::Yes),
            Ok(_) => Ok(Written::Conflict),
            Err(error) if matches!(error.kind(), PurgeErrorKind::TimedOut) => Ok(Written::Unknown),
            Err(error) => Err(NatsError::Refused(error.into())),
        }
    }

    /// The server's time: later than when this was called, earlier than when it returns.
    pub(crate) async fn time(&self) -> Result<Timestamp, NatsError> {
        match self.publish(name::CLOCK, PublishMessage::build()).await? {
            Written::Yes => {}
            Written::Conflict | Written::Unknown => return Err(NatsError::NoAnswer),
        }
        // If somebody else has written it meanwhile, theirs is as good.
        let message = self.message(name::CLOCK).await?;
        message.map(|message| stamp(message.time)).ok_or(NatsError::NoAnswer)
    }

    /// At most so many entries that have expired by this time, the oldest first.
    pub(crate) async fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Expired>, NatsError> {
        self.connected()?;
        let refused = |error: redrive_retry::BoxError| NatsError::Refused(error);
        let config = pull::Config {
            filter_subject: self.subject(&format!("{}.>", name::KEYS)),
            ack_policy: AckPolicy::None,
            headers_only: true,
            memory_storage: true,
            inactive_threshold: FORGOTTEN_AFTER,
            ..Default::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(|error| refused(error.into()))?;
        let (mut found, mut left) = (Vec::new(), consumer.cached_info().num_pending);
        while left > 0 && found.len() < limit {
            let many = usize::try_from(left).map_or(PAGE, |left| left.min(PAGE));
            // Without any message there is nothing left, whatever was counted before.
            left = 0;
            for message in self.page(&consumer, many).await? {
                let info = message.info().map_err(refused)?;
                left = info.pending;
                let after = message.headers.as_ref().and_then(|headers| headers.get(EXPIRES_AFTER));
                // What is not ours is not ours to delete.
                let Some(after) = after.and_then(|after| after.as_str().parse::<i64>().ok()) else {
                    continue;
                };
                let is_over = stamp(info.published).as_millis().saturating_add(after) <= now.as_millis();
                if is_over && found.len() < limit {
                    let name = message.subject.strip_prefix(&self.prefix).unwrap_or_default().to_owned();
                    found.push(Expired { name, revision: info.stream_sequence });
                }
            }
        }
        // The server forgets it by itself if this does not arrive.
        let _ = self.stream.delete_consumer(&consumer.cached_info().name).await;
        Ok(found)
    }

    /// The next messages of somebody who has just begun to look. In a cluster, the server that we are connected to may not have
    /// heard of that one yet: then it is asked again.
    async fn page(&self, consumer: &PullConsumer, many: usize) -> Result<Vec<Message>, NatsError> {
        let until = Instant::now() + self.timeout;
        loop {
            let page = consumer.fetch().max_messages(many).expires(LONGEST_PAGE).messages().await;
            let mut page = page.map_err(|error| NatsError::Refused(error.into()))?;
            let mut messages = Vec::new();
            let ended = loop {
                match page.next().await {
                    Some(Ok(message)) => messages.push(message),
                    Some(Err(error)) if messages.is_empty() => break Err(error),
                    Some(Err(_)) | None => break Ok(()),
                }
            };
            match ended {
                Ok(()) => return Ok(messages),
                Err(error) if Instant::now() > until => return Err(NatsError::Refused(error)),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    async fn message(&self, name: &str) -> Result<Option<StreamMessage>, NatsError> {
        self.connected()?;
        match self.stream.get_last_raw_message_by_subject(&self.subject(name)).await {
            Ok(message) => Ok(Some(message)),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                _ if is_unanswered(&error) => Err(NatsError::NoAnswer),
                _ => Err(NatsError::Refused(error.into())),
            },
        }
    }

    async fn publish(&self, name: &str, message: PublishMessage) -> Result<Written, NatsError> {
        self.connected()?;
        let acknowledged = match self.context.send_publish(self.subject(name), message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(_) => Ok(Written::Yes),
            Err(error) => match error.kind() {
                PublishErrorKind::WrongLastSequence => Ok(Written::Conflict),
                PublishErrorKind::Other if is_conflict(&error) => Ok(Written::Conflict),
                PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => Ok(Written::Unknown),
                _ => Err(NatsError::Refused(error.into())),
            },
        }
    }

    /// The client would keep what it is told for when the server is back. By then it may be too late, and nobody knows of it.
    fn connected(&self) -> Result<(), NatsError> {
        if self.client.connection_state() == Connection::Connected { Ok(()) } else { Err(NatsError::Away) }
    }

    fn subject(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// Newer servers have a number of their own for a write that met another one under way.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let said = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    said.is_some_and(|said| said.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}

fn is_unanswered(error: &(dyn Error + 'static)) -> bool {
    let request = error.source().and_then(|source| source.downcast_ref::<RequestError>());
    request.is_some_and(|request| request.kind() == RequestErrorKind::TimedOut)
}

/// As every client makes a bucket. Not by the client's own call for it: that asks for the account first, and cannot read what a
/// server of version 2.9 answers.
fn config(options: &NatsOptions) -> Config {
    Config {
        name: format!("KV_{}", options.bucket),
        description: Some("idempotency keys".into()),
        subjects: vec![format!("$KV.{}.>", options.bucket)],
        max_messages_per_subject: 1,
        max_age: options.max_age.unwrap_or_default(),
        storage: storage(options.storage),
        num_replicas: options.replicas,
        // What does not fit is refused, instead of an older key being forgotten.
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..Default::default()
    }
}

fn storage(storage: Storage) -> StorageType {
    match storage {
        Storage::File => StorageType::File,
        Storage::Memory => StorageType::Memory,
    }
}

/// Whether the server may be trusted with a bucket that so many servers have.
fn compares(client: &Client, replicas: usize) -> Result<(), NatsError> {
    let [major, minor, patch] = COMPARES;
    if replicas > 1 && !client.is_server_compatible(major, minor, patch) {
        return Err(NatsError::OldServer { version: client.server_info().version });
    }
    Ok(())
}

/// What is promised depends on the bucket, so it must be what was asked for.
fn check(stream: &Stream, options: &NatsOptions) -> Result<(), NatsError> {
    let config = &stream.cached_info().config;
    let wanted_age = options.max_age.unwrap_or(config.max_age);
    let differences = [
        (
            config.storage != storage(options.storage),
            format!("storage {:?}", config.storage),
            format!("{:?}", options.storage),
        ),
        (
            config.num_replicas < options.replicas,
            format!("{} replicas", config.num_replicas),
            options.replicas.to_string(),
        ),
        (
            config.max_age != wanted_age,
            format!("a maximal age of {:?}", config.max_age),
            format!("{wanted_age:?}"),
        ),
        (config.deny_purge, "purging denied".into(), "allowed".into()),
    ];
    match differences.into_iter().find(|(differs, ..)| *differs) {
        Some((_, found, wanted)) => {
            Err(NatsError::OtherBucket { bucket: options.bucket.clone(), found, wanted })
        }
        None => Ok(()),
    }
}
