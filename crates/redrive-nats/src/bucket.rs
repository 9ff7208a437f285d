//! Requests to the key-value bucket and the meaning of its answers.

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

/// Header with the milliseconds after which an entry may be deleted, so that `reap` reads no payloads.
const EXPIRES_AFTER: &str = "Redrive-Expires-After-Ms";

/// First server version with correct compare-and-set on replicated buckets; older ones let several concurrent writers win
/// ([nats-server 4320](https://github.com/nats-io/nats-server/issues/4320)).
const MIN_REPLICATED_VERSION: [i64; 3] = [2, 9, 21];

/// Upper bound of the size of the store's headers.
const MAX_HEADER_BYTES: usize = 512;

/// Entries per request while scanning the bucket.
const PAGE_SIZE: usize = 500;

/// Timeout of a page. An entry that is rewritten during the scan counts twice, so a page may never fill.
const PAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay before a request to a new consumer is repeated.
const CONSUMER_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Idle time after which the server deletes a consumer.
const CONSUMER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Outcome of a write or removal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    /// The key has another revision.
    Conflict,
    /// No answer: the write may have taken effect, or may still do so.
    Unknown,
}

/// An expired entry.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) name: String,
    pub(crate) revision: u64,
}

/// An open bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    client: Client,
    context: Context,
    stream: Stream,
    /// Subject prefix of all entries, with the dot.
    prefix: String,
    max_age: Option<Duration>,
    timeout: Duration,
    /// Message size limit of the bucket; the server has its own.
    max_message: Option<usize>,
}

impl Bucket {
    /// Opens the bucket and creates it if it does not exist.
    pub(crate) async fn open(client: Client, options: &NatsOptions) -> Result<Self, NatsError> {
        let context = ContextBuilder::new().timeout(options.timeout).build(client.clone());
        let failed =
            |source: redrive_retry::BoxError| NatsError::Bucket { bucket: options.bucket.clone(), source };
        let stream = match context.get_stream(format!("KV_{}", options.bucket)).await {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(refusal)
                    if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    check_version(&client, options.replicas)?;
                    context.create_stream(config(options)).await.map_err(|error| failed(error.into()))?
                }
                _ => return Err(failed(error.into())),
            },
        };
        check(&stream, options)?;
        check_version(&client, stream.cached_info().config.num_replicas)?;
        let config = &stream.cached_info().config;
        Ok(Bucket {
            max_age: Some(config.max_age).filter(|age| !age.is_zero()),
            max_message: usize::try_from(config.max_message_size).ok().filter(|limit| *limit > 0),
            prefix: format!("$KV.{}.", options.bucket),
            timeout: options.timeout,
            client,
            context,
            stream,
        })
    }

    /// Age at which the server deletes an entry.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        self.max_age
    }

    /// Reads an entry from the leader of the stream; other servers may lag behind.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<Entry>, NatsError> {
        let message = self.message(name).await?;
        message.map(|message| Entry::read(&message, self.max_age)).transpose()
    }

    /// Writes a value if the entry still has this revision; 0 stands for no entry.
    pub(crate) async fn write(
        &self,
        key: &IdempotencyKey,
        name: &str,
        value: &Value,
        revision: u64,
    ) -> Result<Written, IdempotencyError> {
        let json = value.to_json();
        let limit =
            self.max_message.map_or(self.client.max_payload(), |limit| limit.min(self.client.max_payload()));
        let limit = limit.saturating_sub(MAX_HEADER_BYTES);
        if json.len() > limit {
            return Err(IdempotencyError::TooLarge { key: key.clone(), bytes: json.len(), limit });
        }
        let message = PublishMessage::build()
            .header(EXPIRES_AFTER, value.expires_after_ms().to_string())
            .expected_last_subject_sequence(revision)
            .payload(json.into());
        Ok(self.publish(name, message).await?)
    }

    /// Removes an entry if it still has this revision.
    ///
    /// Purges the name up to this revision, because a delete marker would stay in the stream.
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

    /// Reads the server's time, between the call and its return.
    pub(crate) async fn time(&self) -> Result<Timestamp, NatsError> {
        match self.publish(name::CLOCK, PublishMessage::build()).await? {
            Written::Yes => {}
            Written::Conflict | Written::Unknown => return Err(NatsError::NoAnswer),
        }
        // A concurrent write of another process serves as well.
        let message = self.message(name::CLOCK).await?;
        message.map(|message| stamp(message.time)).ok_or(NatsError::NoAnswer)
    }

    /// Finds at most `limit` entries that have expired at `now`, oldest first.
    pub(crate) async fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Expired>, NatsError> {
        self.connected()?;
        let refused = |error: redrive_retry::BoxError| NatsError::Refused(error);
        let config = pull::Config {
            filter_subject: self.subject(&format!("{}.>", name::KEYS)),
            ack_policy: AckPolicy::None,
            headers_only: true,
            memory_storage: true,
            inactive_threshold: CONSUMER_IDLE_TIMEOUT,
            ..Default::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(|error| refused(error.into()))?;
        let (mut found, mut left) = (Vec::new(), consumer.cached_info().num_pending);
        while left > 0 && found.len() < limit {
            let many = usize::try_from(left).map_or(PAGE_SIZE, |left| left.min(PAGE_SIZE));
            // An empty page ends the scan, whatever the count was.
            left = 0;
            for message in self.page(&consumer, many).await? {
                let info = message.info().map_err(refused)?;
                left = info.pending;
                let after = message.headers.as_ref().and_then(|headers| headers.get(EXPIRES_AFTER));
                // Entries of other programs are not deleted.
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
        // If this fails, the server deletes the idle consumer.
        let _ = self.stream.delete_consumer(&consumer.cached_info().name).await;
        Ok(found)
    }

    /// Fetches the next messages of a new consumer. In a cluster the connected server may not know the consumer yet; then the
    /// request is repeated.
    async fn page(&self, consumer: &PullConsumer, many: usize) -> Result<Vec<Message>, NatsError> {
        let until = Instant::now() + self.timeout;
        loop {
            let page = consumer.fetch().max_messages(many).expires(PAGE_TIMEOUT).messages().await;
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
                Err(_) => tokio::time::sleep(CONSUMER_RETRY_DELAY).await,
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

    /// Refuses requests while disconnected: the client would queue them and send them after their callers have timed out.
    fn connected(&self) -> Result<(), NatsError> {
        if self.client.connection_state() == Connection::Connected {
            Ok(())
        } else {
            Err(NatsError::Disconnected)
        }
    }

    fn subject(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// Newer servers have a separate error code for a conflict with a concurrent write.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    answer.is_some_and(|answer| answer.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}

fn is_unanswered(error: &(dyn Error + 'static)) -> bool {
    let request = error.source().and_then(|source| source.downcast_ref::<RequestError>());
    request.is_some_and(|request| request.kind() == RequestErrorKind::TimedOut)
}

/// Stream configuration of a key-value bucket. The client's own call is not used, because it cannot parse the account
/// information of a 2.9 server.
fn config(options: &NatsOptions) -> Config {
    Config {
        name: format!("KV_{}", options.bucket),
        description: Some("idempotency keys".into()),
        subjects: vec![format!("$KV.{}.>", options.bucket)],
        max_messages_per_subject: 1,
        max_age: options.max_age.unwrap_or_default(),
        storage: storage(options.storage),
        num_replicas: options.replicas,
        // A full bucket refuses new entries instead of dropping old ones.
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

/// Checks that the server's compare-and-set is correct for this number of replicas.
fn check_version(client: &Client, replicas: usize) -> Result<(), NatsError> {
    let [major, minor, patch] = MIN_REPLICATED_VERSION;
    if replicas > 1 && !client.is_server_compatible(major, minor, patch) {
        return Err(NatsError::OldServer { version: client.server_info().version });
    }
    Ok(())
}

/// Checks that an existing bucket matches the options.
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
            format!("a maximum age of {:?}", config.max_age),
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
