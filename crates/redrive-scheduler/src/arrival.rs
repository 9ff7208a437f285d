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
        let Delivery { receipt, body, properties, redelivered, source } = delivery;
        let fingerprint = fingerprint(&body, &properties);
        let said = match self.understand(&body, &properties, source.as_deref()) {
            Ok(Understood::Message(message)) => of_message(message, properties),
            Ok(Understood::DeadLetter { queue, reason }) => of_dead_letter(body, properties, queue, reason),
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
        Arrival { receipt, redelivered, task }
    }

    /// Counts a task on, because its sender has not.
    pub(crate) fn recount(&self, task: &mut Task, retry_count: u32) {
        task.retry_count = retry_count;
        // What its sender has asked for was meant for another count.
        self.set_due(task, 0, task.received_at);
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
        if let Some(subject) = source.filter(|_| form.is_none() || content_type.is_empty()) {
            return Ok(Understood::DeadLetter { queue: subject.to_owned(), reason: "failed".to_owned() });
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
        let queue = origin(&properties, &own)
            .map(|death| death.queue)
            .filter(|queue| check_name("queue", queue).is_ok());
        Said {
            // What is the same to the last byte is one thing to look at.
            message_id: format!("undecodable-{}", &fingerprint[..32]),
            queue: queue.unwrap_or_default().to_owned(),
            body,
            error_reason: error.to_string(),
            retry_count: 0,
            max_retries: 0,
            next_retry_at_ms: 0,
            via: Via::Undecodable,
            problem: Some(Problem { reason: ReviewReason::Undecodable, why: error.to_string() }),
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

fn of_dead_letter(body: Vec<u8>, properties: Properties, queue: String, reason: String) -> Said {
    let is_id = |id: &&str| check_name("id", id).is_ok();
    let message_id = properties.text(header::MESSAGE_ID).filter(is_id);
    let message_id = message_id.or(properties.message_id.as_deref().filter(is_id)).map(str::to_owned);
    let count = |name: &str| {
        let count = properties.number(name).and_then(|count| u32::try_from(count).ok());
        count.filter(|count| *count <= MOST_RETRIES.unsigned_abs()).unwrap_or_default()
    };
    Said {
        // Two messages without an id may be equal to the last byte and are still two: each gets an id of its own.
        message_id: message_id.unwrap_or_else(|| Uuid::now_v7().to_string()),
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

/// What a delivery looks like, so that it is known when it is delivered again.
fn fingerprint(body: &[u8], properties: &Properties) -> String {
    let mut properties = properties.clone();
    for name in VOLATILE {
        properties.headers.remove(name);
    }
    let mut digest = Sha256::new();
    digest.update((body.len() as u64).to_le_bytes());
    digest.update(body);
    // Maps are in order, so what is equal is written equally.
    digest.update(serde_json::to_vec(&properties).unwrap_or_default());
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
