//! What a delivery is: the one place that decides it.

use redrive_retry::Timestamp;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::death::{Death, deaths, origin};
use crate::header;
use crate::payload::Payload;
use crate::properties::Properties;
use crate::retry_message::{DecodeError, MOST_RETRIES, RetryMessage, check_name};
use crate::settings::{Schedule, Settings};
use crate::task::{Problem, ReviewReason, Task, Via};
use crate::transport::{Delivery, Receipt};

/// The AMQP `type` by which a message says that it is a `RetryMessage`, whatever headers it has.
const RETRY_MESSAGE: &str = "RetryMessage";

/// Headers that a broker changes when it delivers again: not part of what a delivery looks like.
const VOLATILE: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// A delivery that was understood, or not: either way a task.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) receipt: Receipt,
    pub(crate) redelivered: bool,
    /// Whether what looks the same is the same, because the broker says which message it is.
    pub(crate) is_certain: bool,
    pub(crate) task: Task,
}

/// Reads deliveries.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    schedule: Schedule,
    retry_queue: String,
    review_queue: String,
    /// Which process this is.
    session: String,
}

/// What a delivery says, before anything is made of it.
struct Said {
    message_id: String,
    body: Vec<u8>,
    queue: String,
    error_reason: String,
    retry_count: u32,
    max_retries: u32,
    next_retry_at_ms: i64,
    via: Via,
    problem: Option<Problem>,
    properties: Properties,
}

impl Reader {
    pub(crate) fn new(settings: &Settings, schedule: Schedule, session: String) -> Self {
        Reader {
            schedule,
            retry_queue: settings.retry_queue.clone(),
            review_queue: settings.review_queue.clone(),
            session,
        }
    }

    /// Makes a task of it, whatever it is.
    pub(crate) fn read(&self, delivery: Delivery, now: Timestamp) -> Arrival {
        let Delivery { receipt, body, properties, redelivered, source, identity } = delivery;
        let properties = properties.without_nul();
        let fingerprint = fingerprint(&body, &properties, identity.as_deref());
        let said = match self.understand(&body, &properties, source.as_deref()) {
            Ok(Understood::Message(message)) => of_message(message, properties),
            Ok(Understood::DeadLetter { queue, reason }) => {
                of_dead_letter(body, properties, queue, reason, identity.as_deref())
            }
            Err(error) => self.undecodable(body, properties, &fingerprint, &error),
        };
        let first_failed_at = said.properties.number(header::FIRST_FAILED_AT).filter(|at| *at > 0);
        let mut task = Task {
            max_retries: self.schedule.max_retries(&said.queue, said.max_retries),
            message_id: said.message_id,
            original_payload: Payload::of(said.body),
            original_queue: said.queue,
            error_reason: said.error_reason.replace('\0', "\u{fffd}"),
            retry_count: said.retry_count,
            copy: 0,
            next_retry_at_ms: said.next_retry_at_ms,
            via: said.via,
            problem: said.problem,
            received_at: now,
            first_failed_at: first_failed_at.map_or(now, Timestamp::from_millis),
            properties: said.properties,
            fingerprint,
            stored_by: self.session.clone(),
            by_hand: None,
        };
        self.set_due(&mut task, said.next_retry_at_ms, now);
        Arrival { receipt, redelivered, is_certain: identity.is_some(), task }
    }

    /// Makes another task of it: with a count that its sender has not given it, or as a copy of one that was there before.
    pub(crate) fn recount(&self, task: &mut Task, retry_count: u32, copy: u32) {
        let is_counted = task.retry_count == retry_count;
        (task.retry_count, task.copy) = (retry_count, copy);
        if !is_counted {
            // What its sender has asked for was meant for another count.
            self.set_due(task, 0, task.received_at);
        }
    }

    fn set_due(&self, task: &mut Task, asked_ms: i64, now: Timestamp) {
        // What goes to a person goes at once.
        let due = match task.for_review() {
            Some(_) => now,
            None => self.schedule.due(task.id(), &task.original_queue, task.retry_count, asked_ms, now),
        };
        task.next_retry_at_ms = due.as_millis();
    }

    /// The table of `docs/guide/scheduler.md`, row by row.
    fn understand(
        &self,
        body: &[u8],
        properties: &Properties,
        source: Option<&str>,
    ) -> Result<Understood, DecodeError> {
        let content_type = properties.content_type.as_deref().unwrap_or_default();
        let form = Form::of(content_type);
        if properties.kind.as_deref() == Some(RETRY_MESSAGE) {
            return form.unwrap_or(Form::Protobuf).decode(body).map(Understood::Message);
        }
        let own = [self.retry_queue.as_str(), self.review_queue.as_str()];
        if deaths(properties).next().is_some() {
            // Its sender may have copied the headers of the message that failed; then it names a queue in which that died.
            if let Some(Ok(message)) = form.filter(|_| !content_type.is_empty()).map(|form| form.decode(body))
                && deaths(properties).any(|death| death.queue == message.original_queue)
            {
                return Ok(Understood::Message(message));
            }
            let Death { queue, reason } = origin(properties, &own).ok_or(DecodeError::NoOrigin)?;
            check_name("the queue in x-death", queue)?;
            return Ok(Understood::DeadLetter { queue: queue.to_owned(), reason: reason.to_owned() });
        }
        if let Some(queue) = source {
            // It may be a `RetryMessage` that has the headers of the message inside.
            if let Some(Ok(message)) = form.filter(|_| !content_type.is_empty()).map(|form| form.decode(body))
            {
                return Ok(Understood::Message(message));
            }
            check_name(header::ORIGINAL_QUEUE, queue)?;
            let reason = properties.text(header::ERROR_REASON).unwrap_or("failed").to_owned();
            return Ok(Understood::DeadLetter { queue: queue.to_owned(), reason });
        }
        let form = form.ok_or_else(|| DecodeError::ContentType { content_type: content_type.to_owned() })?;
        form.decode(body).map(Understood::Message)
    }

    fn undecodable(
        &self,
        body: Vec<u8>,
        properties: Properties,
        fingerprint: &str,
        error: &DecodeError,
    ) -> Said {
        let own = [self.retry_queue.as_str(), self.review_queue.as_str()];
        let why = error.to_string().replace('\0', "\u{fffd}");
        let queue = origin(&properties, &own)
            .map(|death| death.queue)
            .filter(|queue| check_name("queue", queue).is_ok());
        Said {
            // What is the same to the last byte is one thing to look at.
            message_id: format!("undecodable-{}", &fingerprint[..32]),
            queue: queue.unwrap_or_default().to_owned(),
            body,
            error_reason: why.clone(),
            retry_count: 0,
            max_retries: 0,
            next_retry_at_ms: 0,
            via: Via::Undecodable,
            problem: Some(Problem { reason: ReviewReason::Undecodable, why }),
            properties,
        }
    }
}

enum Understood {
    Message(RetryMessage),
    DeadLetter { queue: String, reason: String },
}

/// How a `RetryMessage` is written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Form {
    Protobuf,
    Json,
}

impl Form {
    /// By the content type, without its parameters. None at all, or that of any bytes, is protobuf.
    fn of(content_type: &str) -> Option<Self> {
        let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match name.as_str() {
            ""
            | "application/octet-stream"
            | "application/x-protobuf"
            | "application/protobuf"
            | "application/vnd.google.protobuf" => Some(Form::Protobuf),
            "application/json" => Some(Form::Json),
            _ => None,
        }
    }

    fn decode(self, body: &[u8]) -> Result<RetryMessage, DecodeError> {
        match self {
            Form::Protobuf => RetryMessage::from_protobuf(body),
            Form::Json => RetryMessage::from_json(body),
        }
    }
}

fn of_message(message: RetryMessage, mut properties: Properties) -> Said {
    // These are of the envelope. What the message itself had, its sender may pass on in headers.
    properties.content_type = header::take_text(&mut properties, header::CONTENT_TYPE);
    properties.content_encoding = header::take_text(&mut properties, header::CONTENT_ENCODING);
    properties.kind = header::take_text(&mut properties, header::TYPE);
    properties.message_id = Some(message.message_id.clone());
    Said {
        message_id: message.message_id,
        body: message.original_payload,
        queue: message.original_queue,
        error_reason: message.error_reason,
        // Neither is negative, because it was checked.
        retry_count: message.retry_count.unsigned_abs(),
        max_retries: message.max_retries.unsigned_abs(),
        next_retry_at_ms: message.next_retry_at_ms,
        via: Via::RetryMessage,
        problem: None,
        properties,
    }
}

fn of_dead_letter(
    body: Vec<u8>,
    properties: Properties,
    queue: String,
    reason: String,
    identity: Option<&str>,
) -> Said {
    let is_id = |id: &&str| check_name("id", id).is_ok();
    // A consumer may have copied the headers to another message.
    let is_copied = properties.text(header::ORIGINAL_QUEUE).is_some_and(|named| named != queue);
    let message_id = properties.text(header::MESSAGE_ID).filter(|_| !is_copied).filter(is_id);
    let message_id = message_id.or(properties.message_id.as_deref().filter(is_id)).map(str::to_owned);
    let count = |name: &str| {
        let count = properties.number(name).and_then(|count| u32::try_from(count).ok());
        let is_meant = |count: &u32| !is_copied && *count <= MOST_RETRIES.unsigned_abs();
        count.filter(is_meant).unwrap_or_default()
    };
    Said {
        // Two messages without an id may be equal to the last byte and are still two: each gets an id of its own.
        message_id: message_id.unwrap_or_else(|| identity.map_or_else(Uuid::now_v7, id_of).to_string()),
        retry_count: count(header::RETRY_COUNT),
        max_retries: count(header::MAX_RETRIES),
        body,
        error_reason: format!("dead-lettered: {reason}"),
        queue,
        next_retry_at_ms: 0,
        via: Via::DeadLetter,
        problem: None,
        properties,
    }
}

/// The id of a message that has none, and of which the broker says which it is: the same whenever it is delivered.
fn id_of(identity: &str) -> Uuid {
    let digest = Sha256::digest(identity.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::new_v8(bytes)
}

/// What a delivery looks like, so that it is known when it is delivered again.
fn fingerprint(body: &[u8], properties: &Properties, identity: Option<&str>) -> String {
    let mut properties = properties.clone();
    for name in VOLATILE {
        properties.headers.remove(name);
    }
    let mut digest = Sha256::new();
    digest.update((body.len() as u64).to_le_bytes());
    digest.update(body);
    // Maps are in order, so what is equal is written equally.
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

    fn reader() -> Reader {
        let settings = Settings::default();
        let schedule = settings.schedule().unwrap();
        Reader::new(&settings, schedule, "here".into())
    }

    fn delivery(body: impl Into<Vec<u8>>, properties: Properties) -> Delivery {
        let receipt = Receipt { epoch: 1, tag: 1 };
        Delivery { receipt, body: body.into(), properties, redelivered: false, source: None, identity: None }
    }

    fn read(body: impl Into<Vec<u8>>, properties: Properties) -> Task {
        reader().read(delivery(body, properties), NOW).task
    }

    fn message() -> RetryMessage {
        RetryMessage { message_id: "m".into(), original_queue: "orders".into(), ..RetryMessage::default() }
    }

    fn typed(content_type: &str) -> Properties {
        Properties { content_type: Some(content_type.into()), ..Properties::default() }
    }

    /// The rows of the table in `docs/guide/scheduler.md`.
    #[test]
    fn what_a_delivery_is() {
        let protobuf = message().to_protobuf();
        let json = message().to_json().into_bytes();
        let with = |properties: Properties, change: fn(&mut Properties)| {
            let mut properties = properties;
            change(&mut properties);
            properties
        };
        let says_so = |properties: &mut Properties| properties.kind = Some("RetryMessage".into());
        let is_json = |properties: &mut Properties| properties.content_type = Some("application/json".into());
        let is_protobuf =
            |properties: &mut Properties| properties.content_type = Some("application/x-protobuf".into());
        let is_text = |properties: &mut Properties| properties.content_type = Some("text/plain".into());
        let dead = || died_in(&[("orders", "rejected")]);
        let dead_elsewhere = || died_in(&[("elsewhere", "rejected")]);
        for (body, properties, via, queue) in [
            (&protobuf, with(dead_elsewhere(), says_so), Via::RetryMessage, "orders"),
            (&json, with(with(dead_elsewhere(), says_so), is_json), Via::RetryMessage, "orders"),
            (&json, with(Properties::default(), says_so), Via::Undecodable, ""),
            (&protobuf, with(dead(), is_protobuf), Via::RetryMessage, "orders"),
            (&json, with(dead(), is_json), Via::RetryMessage, "orders"),
            (&protobuf, with(dead_elsewhere(), is_protobuf), Via::DeadLetter, "elsewhere"),
            (&json, with(dead_elsewhere(), is_json), Via::DeadLetter, "elsewhere"),
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

    /// A broker with subjects: what failed says by its subject where it belongs.
    #[test]
    fn a_source_is_an_origin() {
        let plain = Delivery { source: Some("orders.eu".into()), ..delivery("x", Properties::default()) };
        let task = reader().read(plain, NOW).task;
        assert_eq!((task.via, task.original_queue.as_str()), (Via::DeadLetter, "orders.eu"));
        let message = delivery(message().to_protobuf(), typed("application/x-protobuf"));
        let task = reader().read(Delivery { source: Some("orders.eu".into()), ..message }, NOW).task;
        assert_eq!((task.via, task.original_queue.as_str()), (Via::RetryMessage, "orders"));
        let mut properties = typed("application/json");
        properties.headers.insert(header::ERROR_REASON.into(), HeaderValue::text("timed out"));
        let order = Delivery { source: Some("orders.eu".into()), ..delivery("{}", properties) };
        let task = reader().read(order, NOW).task;
        assert_eq!((task.via, task.error_reason.as_str()), (Via::DeadLetter, "dead-lettered: timed out"));
    }

    /// A broker with streams: where it says which message it is, one without an id is known again.
    #[test]
    fn an_identity_is_an_id() {
        let read = |identity: Option<&str>| {
            let plain = delivery("x", died_in(&[("orders", "rejected")]));
            reader().read(Delivery { identity: identity.map(str::to_owned), ..plain }, NOW)
        };
        let (first, same, other) =
            (read(Some("RETRY/1/7")), read(Some("RETRY/1/7")), read(Some("RETRY/2/7")));
        assert_eq!((first.task.id(), &first.task.fingerprint), (same.task.id(), &same.task.fingerprint));
        assert_ne!((first.task.id(), &first.task.fingerprint), (other.task.id(), &other.task.fingerprint));
        assert!(first.is_certain && !read(None).is_certain);
        assert_ne!(read(None).task.id(), read(None).task.id());
    }

    #[test]
    fn a_dead_letter_carries_its_count_and_its_id() {
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
        // What cannot be a count is none.
        for bad in [HeaderValue::I64(-1), HeaderValue::text("many"), HeaderValue::I64(i64::MAX)] {
            properties.headers.insert(header::RETRY_COUNT.to_owned(), bad);
            assert_eq!(read("x", properties.clone()).retry_count, 0);
        }
    }

    #[test]
    fn what_goes_to_a_person_goes_at_once() {
        let exhausted =
            RetryMessage { retry_count: 3, next_retry_at_ms: NOW.as_millis() + 5000, ..message() };
        assert_eq!(read(exhausted.to_protobuf(), Properties::default()).next_retry_at_ms, NOW.as_millis());
        let nul = RetryMessage { error_reason: "a\0b".into(), ..message() };
        let task = read(nul.to_protobuf(), Properties::default());
        assert_eq!(task.error_reason, "a\u{fffd}b", "no database would keep it");
        assert!(task.next_retry_at_ms > NOW.as_millis());
    }

    /// Only what the broker itself changes when it delivers again is left out.
    #[test]
    fn a_delivery_is_known_again() {
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
        /// Whatever comes is a task that can be stored, with all of its bytes in it.
        #[test]
        fn nothing_makes_it_panic_and_nothing_is_lost(
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
