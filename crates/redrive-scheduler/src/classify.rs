//! Classifies a delivery as `RetryMessage`, dead letter or undecodable, and makes a task of it.

use redrive_retry::Timestamp;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::death::{Death, deaths, origin};
use crate::header;
use crate::payload::Payload;
use crate::properties::{Properties, replace_nul};
use crate::retry_message::{DecodeError, MAX_RETRIES, RetryMessage, check_name};
use crate::settings::{Schedule, Settings};
use crate::task::{Problem, ReviewReason, Task, Via, derived_uuid};
use crate::transport::{Delivery, Receipt};

/// AMQP `type` that declares a message to be a `RetryMessage`, regardless of its headers.
pub(crate) const RETRY_MESSAGE: &str = "RetryMessage";

/// Headers that the broker changes on redelivery; excluded from the fingerprint.
const VOLATILE: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// A delivery and the task made of it.
#[derive(Debug)]
pub(crate) struct ClassifiedDelivery {
    pub(crate) receipt: Receipt,
    pub(crate) redelivered: bool,
    /// Whether the broker identifies messages, so that equal fingerprints mean the same message.
    pub(crate) has_identity: bool,
    /// Number of fields of a `RetryMessage` in protobuf that this release does not know.
    pub(crate) unknown_fields: usize,
    pub(crate) task: Task,
}

/// Makes tasks of deliveries.
#[derive(Clone, Debug)]
pub(crate) struct Classifier {
    pub(crate) schedule: Schedule,
    /// Id of this process.
    pub(crate) session: String,
}

impl Classifier {
    pub(crate) fn settings(&self) -> &Settings {
        &self.schedule.settings
    }

    /// Makes a task of the delivery. An undecodable one becomes a task for review.
    pub(crate) fn classify(&self, delivery: Delivery, now: Timestamp) -> ClassifiedDelivery {
        let Delivery { receipt, body, properties, redelivered, source, identity } = delivery;
        let properties = properties.without_nul();
        let fingerprint = fingerprint(&body, &properties, identity.as_deref());
        let first_failed_at = properties.number(header::FIRST_FAILED_AT).filter(|at| *at > 0);
        let task = Task {
            first_failed_at: first_failed_at.map_or(now, Timestamp::from_millis),
            properties,
            fingerprint,
            stored_by: self.session.clone(),
            ..Task::empty(now)
        };
        let mut unknown_fields = 0;
        let (mut task, asked_ms) = match self.kind_of(&body, &task.properties, source.as_deref()) {
            Ok(DeliveryKind::Message((message, unknown))) => {
                unknown_fields = unknown;
                of_message(task, message)
            }
            Ok(DeliveryKind::DeadLetter { queue, reason }) => {
                (of_dead_letter(task, body, queue, &reason, identity.as_deref()), 0)
            }
            Err(error) => (self.undecodable(task, body, &error), 0),
        };
        replace_nul(&mut task.error_reason);
        task.max_retries = self.schedule.max_retries(&task.original_queue, task.max_retries);
        self.set_due(&mut task, asked_ms);
        ClassifiedDelivery { receipt, redelivered, has_identity: identity.is_some(), unknown_fields, task }
    }

    /// Turns the task into another one: with a retry count that its sender did not give, or as a copy.
    pub(crate) fn recount(&self, task: &mut Task, retry_count: u32, copy: u32) {
        let is_counted = task.retry_count == retry_count;
        (task.retry_count, task.copy) = (retry_count, copy);
        if !is_counted {
            // The due time that the sender asked for belongs to another count.
            self.set_due(task, 0);
        }
    }

    /// Sets the due time: the time that the message asks for (0 for none) or the backoff, also for a message whose retries are used up;
    /// at once for one that cannot be retried at all.
    fn set_due(&self, task: &mut Task, asked_ms: i64) {
        let now = task.received_at;
        let due = match task.problem {
            Some(_) => now,
            None => self.schedule.due(task.id(), &task.original_queue, task.retry_count, asked_ms, now),
        };
        task.next_retry_at_ms = due.as_millis();
    }

    /// Implements the table of `docs/guide/scheduler.md`, row by row.
    fn kind_of(
        &self,
        body: &[u8],
        properties: &Properties,
        source: Option<&str>,
    ) -> Result<DeliveryKind, DecodeError> {
        let content_type = properties.content_type.as_deref().unwrap_or_default();
        let decode = decoder(content_type);
        if properties.kind.as_deref() == Some(RETRY_MESSAGE) {
            return decode.unwrap_or(RetryMessage::decode_protobuf)(body).map(DeliveryKind::Message);
        }
        // With an explicit content type only: a dead letter without one may happen to decode.
        let declared = || decode.filter(|_| !content_type.is_empty()).and_then(|decode| decode(body).ok());
        if deaths(properties).next().is_some() {
            // A RetryMessage may carry the copied headers of the failed message; then it names one of the queues in them.
            if let Some(message) = declared()
                && deaths(properties).any(|death| death.queue == message.0.original_queue)
            {
                return Ok(DeliveryKind::Message(message));
            }
            let Death { queue, reason } = self.origin(properties).ok_or(DecodeError::NoOrigin)?;
            check_name("the queue in x-death", queue)?;
            return Ok(DeliveryKind::DeadLetter { queue: queue.to_owned(), reason: reason.to_owned() });
        }
        if let Some(queue) = source {
            // A RetryMessage may carry the copied headers of the failed message. Without unknown fields only: another message may
            // happen to have the known ones.
            if let Some(message) = declared().filter(|(_, unknown)| *unknown == 0) {
                return Ok(DeliveryKind::Message(message));
            }
            check_name(header::ORIGINAL_QUEUE, queue)?;
            let reason = properties.text(header::ERROR_REASON).unwrap_or("failed").to_owned();
            return Ok(DeliveryKind::DeadLetter { queue: queue.to_owned(), reason });
        }
        let unknown = || DecodeError::ContentType { content_type: content_type.to_owned() };
        decode.ok_or_else(unknown)?(body).map(DeliveryKind::Message)
    }

    fn origin<'a>(&self, properties: &'a Properties) -> Option<Death<'a>> {
        let settings = self.settings();
        origin(properties, &[settings.retry_queue.as_str(), settings.review_queue.as_str()])
    }

    fn undecodable(&self, task: Task, body: Vec<u8>, error: &DecodeError) -> Task {
        let mut why = error.to_string();
        replace_nul(&mut why);
        let queue = self
            .origin(&task.properties)
            .map(|death| death.queue)
            .filter(|queue| check_name("queue", queue).is_ok());
        Task {
            // Identical messages are one task.
            message_id: format!("undecodable-{}", &task.fingerprint[..32]),
            original_queue: queue.unwrap_or_default().to_owned(),
            original_payload: Payload::of(body),
            error_reason: why.clone(),
            via: Via::Undecodable,
            problem: Some(Problem { reason: ReviewReason::Undecodable, why }),
            ..task
        }
    }
}

enum DeliveryKind {
    Message(Decoded),
    DeadLetter { queue: String, reason: String },
}

/// A message, and the number of its unknown fields.
type Decoded = (RetryMessage, usize);

type Decode = fn(&[u8]) -> Result<Decoded, DecodeError>;

/// Decoder by content type, without its parameters. No content type, or `application/octet-stream`, means protobuf.
fn decoder(content_type: &str) -> Option<Decode> {
    let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match name.as_str() {
        ""
        | "application/octet-stream"
        | "application/x-protobuf"
        | "application/protobuf"
        | "application/vnd.google.protobuf" => Some(RetryMessage::decode_protobuf),
        "application/json" => Some(|body| Ok((RetryMessage::from_json(body)?, 0))),
        _ => None,
    }
}

/// Completes the task of a `RetryMessage`. Also returns the due time that the message asks for.
fn of_message(mut task: Task, message: RetryMessage) -> (Task, i64) {
    let properties = &mut task.properties;
    // These properties describe the envelope. The sender passes those of the original message in headers.
    properties.content_type = header::take_text(properties, header::CONTENT_TYPE);
    properties.content_encoding = header::take_text(properties, header::CONTENT_ENCODING);
    properties.kind = header::take_text(properties, header::TYPE);
    properties.message_id = Some(message.message_id.clone());
    let task = Task {
        message_id: message.message_id,
        original_payload: Payload::of(message.original_payload),
        original_queue: message.original_queue,
        error_reason: message.error_reason,
        // Decoding refuses negative counts.
        retry_count: message.retry_count.unsigned_abs(),
        max_retries: message.max_retries.unsigned_abs(),
        via: Via::RetryMessage,
        ..task
    };
    (task, message.next_retry_at_ms)
}

fn of_dead_letter(task: Task, body: Vec<u8>, queue: String, reason: &str, identity: Option<&str>) -> Task {
    let properties = &task.properties;
    let is_id = |id: &&str| check_name("id", id).is_ok();
    // A consumer may have copied our headers to another message.
    let is_copied = properties.text(header::ORIGINAL_QUEUE).is_some_and(|named| named != queue);
    let message_id = properties.text(header::MESSAGE_ID).filter(|_| !is_copied).filter(is_id);
    let message_id = message_id.or(properties.message_id.as_deref().filter(is_id)).map(str::to_owned);
    let count = |name: &str| {
        let count = properties.number(name).and_then(|count| u32::try_from(count).ok());
        let is_valid = |count: &u32| !is_copied && *count <= MAX_RETRIES.unsigned_abs();
        count.filter(is_valid).unwrap_or_default()
    };
    // Messages without an id get one each, even if they are identical: derived from the broker's identity, so that it is the same on
    // redelivery, or else random.
    let new_id = || identity.map_or_else(Uuid::now_v7, |id| derived_uuid(Sha256::new_with_prefix(id)));
    Task {
        message_id: message_id.unwrap_or_else(|| new_id().to_string()),
        retry_count: count(header::RETRY_COUNT),
        max_retries: count(header::MAX_RETRIES),
        original_payload: Payload::of(body),
        error_reason: format!("dead-lettered: {reason}"),
        original_queue: queue,
        via: Via::DeadLetter,
        ..task
    }
}

/// Hash of a delivery's content, equal on redelivery.
fn fingerprint(body: &[u8], properties: &Properties, identity: Option<&str>) -> String {
    let mut properties = properties.clone();
    for name in VOLATILE {
        properties.headers.remove(name);
    }
    let mut digest = Sha256::new();
    digest.update((body.len() as u64).to_le_bytes());
    digest.update(body);
    // Maps are ordered, so equal properties serialise equally.
    digest.update(serde_json::to_vec(&properties).unwrap_or_default());
    digest.update(identity.unwrap_or_default().as_bytes());
    hex(&digest.finalize())
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::death::tests::died_in;
    use crate::properties::HeaderValue;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn classifier() -> Classifier {
        let schedule = Settings::default().schedule().unwrap();
        Classifier { schedule, session: "here".into() }
    }

    fn delivery(body: impl Into<Vec<u8>>, properties: Properties) -> Delivery {
        let receipt = Receipt { epoch: 1, tag: 1 };
        Delivery { receipt, body: body.into(), properties, redelivered: false, source: None, identity: None }
    }

    fn read(body: impl Into<Vec<u8>>, properties: Properties) -> Task {
        classifier().classify(delivery(body, properties), NOW).task
    }

    fn message() -> RetryMessage {
        RetryMessage { message_id: "m".into(), original_queue: "orders".into(), ..RetryMessage::default() }
    }

    fn typed(content_type: &str) -> Properties {
        Properties { content_type: Some(content_type.into()), ..Properties::default() }
    }

    /// The rows of the table in `docs/guide/scheduler.md`.
    #[test]
    fn deliveries_are_classified_as_documented() {
        let protobuf = message().to_protobuf();
        let json = message().to_json().into_bytes();
        let with = |properties: Properties, change: fn(&mut Properties)| {
            let mut properties = properties;
            change(&mut properties);
            properties
        };
        let is_typed = |properties: &mut Properties| properties.kind = Some("RetryMessage".into());
        let is_json = |properties: &mut Properties| properties.content_type = Some("application/json".into());
        let is_protobuf =
            |properties: &mut Properties| properties.content_type = Some("application/x-protobuf".into());
        let is_text = |properties: &mut Properties| properties.content_type = Some("text/plain".into());
        let dead = || died_in(&[("orders", "rejected")]);
        let dead_in_other_queue = || died_in(&[("other", "rejected")]);
        for (body, properties, via, queue) in [
            (&protobuf, with(dead_in_other_queue(), is_typed), Via::RetryMessage, "orders"),
            (&json, with(with(dead_in_other_queue(), is_typed), is_json), Via::RetryMessage, "orders"),
            (&json, with(Properties::default(), is_typed), Via::Undecodable, ""),
            (&protobuf, with(dead(), is_protobuf), Via::RetryMessage, "orders"),
            (&json, with(dead(), is_json), Via::RetryMessage, "orders"),
            (&protobuf, with(dead_in_other_queue(), is_protobuf), Via::DeadLetter, "other"),
            (&json, with(dead_in_other_queue(), is_json), Via::DeadLetter, "other"),
            (&protobuf, dead(), Via::DeadLetter, "orders"),
            (&json, with(dead(), is_text), Via::DeadLetter, "orders"),
            (&protobuf, died_in(&[("retry.scheduled", "expired")]), Via::Undecodable, ""),
            (&protobuf, Properties::default(), Via::RetryMessage, "orders"),
            (&protobuf, typed("application/x-protobuf"), Via::RetryMessage, "orders"),
            (&protobuf, typed("application/octet-stream"), Via::RetryMessage, "orders"),
            (&json, typed("application/json; charset=utf-8"), Via::RetryMessage, "orders"),
            (&json, typed("application/x-protobuf"), Via::Undecodable, ""),
            (&protobuf, typed("application/json"), Via::Undecodable, ""),
            (&protobuf, typed("text/plain"), Via::Undecodable, ""),
        ] {
            let task = read(body.clone(), properties.clone());
            assert_eq!((task.via, task.original_queue.as_str()), (via, queue), "{properties:?}");
        }
    }

    /// NATS: the subject of a failed message names its origin.
    #[test]
    fn the_source_of_a_delivery_is_its_original_queue() {
        let plain = Delivery { source: Some("orders.eu".into()), ..delivery("x", Properties::default()) };
        let task = classifier().classify(plain, NOW).task;
        assert_eq!((task.via, task.original_queue.as_str()), (Via::DeadLetter, "orders.eu"));
        let message = delivery(message().to_protobuf(), typed("application/x-protobuf"));
        let task = classifier().classify(Delivery { source: Some("orders.eu".into()), ..message }, NOW).task;
        assert_eq!((task.via, task.original_queue.as_str()), (Via::RetryMessage, "orders"));
        let mut properties = typed("application/json");
        properties.headers.insert(header::ERROR_REASON.into(), HeaderValue::text("timed out"));
        let order = Delivery { source: Some("orders.eu".into()), ..delivery("{}", properties) };
        let task = classifier().classify(order, NOW).task;
        assert_eq!((task.via, task.error_reason.as_str()), (Via::DeadLetter, "dead-lettered: timed out"));
    }

    #[test]
    fn unknown_fields_are_counted_in_a_retry_message_and_not_guessed_from() {
        let bytes = [message().to_protobuf(), vec![0x40, 1]].concat();
        let declared = typed("application/x-protobuf");
        let read = classifier().classify(delivery(bytes.clone(), declared.clone()), NOW);
        assert_eq!((read.task.via, read.unknown_fields), (Via::RetryMessage, 1));
        let other = Delivery { source: Some("orders.eu".into()), ..delivery(bytes, declared) };
        let read = classifier().classify(other, NOW);
        assert_eq!((read.task.via, read.unknown_fields), (Via::DeadLetter, 0), "a message of another kind");
    }

    /// NATS: the position in the stream identifies a message without an id.
    #[test]
    fn the_identity_of_a_delivery_replaces_a_missing_id() {
        let read = |identity: Option<&str>| {
            let plain = delivery("x", died_in(&[("orders", "rejected")]));
            classifier().classify(Delivery { identity: identity.map(str::to_owned), ..plain }, NOW)
        };
        let (first, same, other) =
            (read(Some("RETRY/1/7")), read(Some("RETRY/1/7")), read(Some("RETRY/2/7")));
        assert_eq!((first.task.id(), &first.task.fingerprint), (same.task.id(), &same.task.fingerprint));
        assert_ne!((first.task.id(), &first.task.fingerprint), (other.task.id(), &other.task.fingerprint));
        assert!(first.has_identity && !read(None).has_identity);
        assert_ne!(read(None).task.id(), read(None).task.id());
    }

    #[test]
    fn a_dead_letter_keeps_its_retry_count_and_id() {
        let mut properties = died_in(&[("orders", "rejected")]);
        properties.message_id = Some("theirs".into());
        assert_eq!(read("x", properties.clone()).message_id, "theirs");
        for (name, value) in [
            (header::MESSAGE_ID, HeaderValue::text("ours")),
            (header::RETRY_COUNT, HeaderValue::I64(2)),
            (header::MAX_RETRIES, HeaderValue::U8(9)),
            (header::FIRST_FAILED_AT, HeaderValue::I64(77)),
        ] {
            properties.headers.insert(name.to_owned(), value);
        }
        let task = read("x", properties.clone());
        assert_eq!((task.message_id.as_str(), task.retry_count, task.max_retries), ("ours", 2, 9));
        assert_eq!(task.first_failed_at, Timestamp::from_millis(77));
        // An invalid count is ignored.
        for bad in [HeaderValue::I64(-1), HeaderValue::text("many"), HeaderValue::I64(i64::MAX)] {
            properties.headers.insert(header::RETRY_COUNT.to_owned(), bad);
            assert_eq!(read("x", properties.clone()).retry_count, 0);
        }
    }

    #[test]
    fn an_exhausted_message_goes_to_review_when_it_is_due() {
        let exhausted =
            RetryMessage { retry_count: 3, next_retry_at_ms: NOW.as_millis() + 5000, ..message() };
        let task = read(exhausted.to_protobuf(), Properties::default());
        assert_eq!(task.for_review(), Some(ReviewReason::RetriesExhausted));
        assert_eq!(task.next_retry_at_ms, NOW.as_millis() + 5000, "the time that it asks for");
        let exhausted = RetryMessage { next_retry_at_ms: 0, ..exhausted };
        let task = read(exhausted.to_protobuf(), Properties::default());
        let wait = task.next_retry_at_ms - NOW.as_millis();
        assert!((16_000..=17_000).contains(&wait), "the backoff of its count: {wait}");
    }

    #[test]
    fn an_undecodable_message_goes_to_review_at_once() {
        let task = read("x", typed("text/plain"));
        assert_eq!(task.for_review(), Some(ReviewReason::Undecodable));
        assert_eq!(task.next_retry_at_ms, NOW.as_millis());
    }

    #[test]
    fn nul_in_an_error_reason_is_replaced() {
        let nul = RetryMessage { error_reason: "a\0b".into(), ..message() };
        let task = read(nul.to_protobuf(), Properties::default());
        assert_eq!(task.error_reason, "a\u{fffd}b", "databases refuse NUL");
        assert!(task.next_retry_at_ms > NOW.as_millis());
    }

    #[test]
    fn the_fingerprint_ignores_only_what_the_broker_changes_on_redelivery() {
        let mut properties = typed("application/x-protobuf");
        let first = read("x", properties.clone());
        properties.headers.insert("x-delivery-count".into(), HeaderValue::I64(1));
        assert_eq!(read("x", properties.clone()).fingerprint, first.fingerprint);
        properties.headers.insert("other".into(), HeaderValue::I64(1));
        assert_ne!(read("x", properties.clone()).fingerprint, first.fingerprint);
        assert_ne!(read("y", typed("application/x-protobuf")).fingerprint, first.fingerprint);
        assert_eq!(first.fingerprint.len(), 64);
    }

    proptest! {
        #[test]
        fn every_delivery_becomes_a_storable_task_with_all_of_its_bytes(
            body: Vec<u8>,
            content_type in prop::option::of("(application/json|application/x-protobuf|text/plain|.{0,20})"),
            kind in prop::option::of("(RetryMessage|.{0,10})"),
            deaths in prop::collection::vec((".{0,300}", "(rejected|expired|.{0,5})"), 0..3),
        ) {
            let deaths: Vec<_> = deaths.iter().map(|(queue, reason)| (queue.as_str(), reason.as_str())).collect();
            let properties = Properties { content_type, kind, ..if deaths.is_empty() { Properties::default() } else { died_in(&deaths) } };
            let task = read(body.clone(), properties);
            let json = serde_json::to_string(&task).unwrap();
            prop_assert!(!json.contains("\\u0000") || json.contains("\\\\u0000"));
            prop_assert_eq!(&serde_json::from_str::<Task>(&json).unwrap(), &task);
            if task.via != Via::RetryMessage {
                prop_assert_eq!(task.original_payload.bytes().unwrap().into_owned(), body);
            }
            prop_assert!(task.message_id.len() <= 255 && task.original_queue.len() <= 255);
        }
    }
}
