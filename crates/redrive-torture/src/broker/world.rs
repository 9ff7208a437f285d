//! Clients around the scheduler: publishers of failed messages, consumers, and a reader of the review queue.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::BasicProperties;
use redrive_scheduler::{RetryMessage, header};
use tokio::task::JoinHandle;

use super::line::{Fetched, Line};
use crate::dice::Dice;
use crate::options::is_interrupted;

/// Retry limit of a message.
const MAX_RETRIES: i32 = 3;

/// Poll interval of an empty queue.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// A message that was sent before a pause has arrived after this time, also on a busy broker.
const SETTLE_DELAY: Duration = Duration::from_millis(400);

/// Target queue of a message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Second,
    /// Does not exist.
    Nowhere,
    Review,
}

/// Behaviour of the consumer when the message comes back.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is handled.
    Handled,
    /// It fails once more, and is handled then.
    FailsAgain,
    /// It fails every time.
    AlwaysFails,
    /// It fails every time, and its consumer resets the retry count.
    NeverCounted,
    /// The message's queue does not exist.
    Nowhere,
    /// It is not a valid message.
    Garbage,
}

/// Observations of one message.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) fate: Fate,
    /// Whether the broker has confirmed it.
    pub(super) is_sent: bool,
    /// Number of returns by retry count.
    pub(super) came_back: HashMap<i64, u64>,
    /// Number of arrivals in review.
    pub(super) reviewed: u64,
    /// Whether it was handled.
    pub(super) is_handled: bool,
    /// Failures sent to the broker: a duplicate fails twice, and an unconfirmed failure is sent again.
    pub(super) failures: u64,
}

impl Entry {
    /// Whether it is handled or in review as planned. If queues are deleted, every message may end in review.
    pub(super) fn is_settled(&self, deletes: bool) -> bool {
        match self.fate {
            Fate::Handled | Fate::FailsAgain => self.is_handled || deletes && self.reviewed > 0,
            Fate::AlwaysFails | Fate::NeverCounted | Fate::Nowhere | Fate::Garbage => self.reviewed > 0,
        }
    }

    /// Number of duplicates.
    pub(super) fn duplicates(&self) -> u64 {
        self.came_back.values().map(|times| times - 1).sum::<u64>() + self.reviewed.saturating_sub(1)
    }
}

/// State that all clients share.
#[derive(Debug)]
pub(super) struct World {
    url: String,
    number: u64,
    deletes: bool,
    pub(super) entries: Mutex<HashMap<String, Entry>>,
    pub(super) complaints: Mutex<Vec<String>>,
    /// No new messages are sent.
    is_enough: AtomicBool,
    /// All clients stop.
    is_over: AtomicBool,
    sent: AtomicU64,
}

impl World {
    pub(super) fn new(url: String, number: u64, deletes: bool) -> Self {
        World {
            url,
            number,
            deletes,
            entries: Mutex::default(),
            complaints: Mutex::default(),
            is_enough: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            sent: AtomicU64::new(0),
        }
    }

    pub(super) fn queue(&self, place: Place) -> String {
        let name = match place {
            Place::First => "work-a",
            Place::Second => "work-b",
            Place::Nowhere => "nowhere",
            Place::Review => "manual-review",
        };
        format!("{name}.{}", self.number)
    }

    pub(super) fn retry_queue(&self) -> String {
        format!("retry.{}", self.number)
    }

    pub(super) fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complain(&self, what: String) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    pub(super) fn enough(&self) {
        self.is_enough.store(true, Ordering::Release);
    }

    pub(super) fn over(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || is_interrupted()
    }

    /// Whether one more failure may be sent; counts it if so.
    fn may_fail(&self, id: &str) -> bool {
        let may = !self.is_over();
        if let Some(entry) = self.entries().get_mut(id).filter(|_| may) {
            entry.failures += 1;
        }
        may
    }

    /// Declares the queues and starts all clients.
    pub(super) async fn begin(self: &Arc<Self>, seed: u64) -> Result<Vec<JoinHandle<()>>, String> {
        let mut line = Line::new(&self.url);
        line.declare(&self.retry_queue(), true).await?;
        line.declare(&self.queue(Place::Review), true).await?;
        line.declare(&self.queue(Place::First), true).await?;
        self.declare(Place::Second).await?;
        let mut all = Vec::new();
        for place in [Place::First, Place::Second, Place::Review] {
            all.push(tokio::spawn(Arc::clone(self).consume(place)));
        }
        all.push(tokio::spawn(Arc::clone(self).send(Dice::split(seed, 1))));
        Ok(all)
    }

    /// Quorum queues cannot be deleted on condition, and a deletion discards their messages.
    pub(super) async fn declare(&self, place: Place) -> Result<(), String> {
        let is_quorum = !(self.deletes && place == Place::Second);
        Line::new(&self.url).declare(&self.queue(place), is_quorum).await
    }

    /// Deletes the queue after it was idle for a moment, so that no message is on its way.
    pub(super) async fn delete(&self, place: Place) -> Result<(), String> {
        let (mut line, queue) = (Line::new(&self.url), self.queue(place));
        for _ in 0..100 {
            tokio::time::sleep(SETTLE_DELAY).await;
            if line.delete_if_empty(&queue).await {
                return Ok(());
            }
        }
        Err(format!("{queue} is never empty"))
    }

    /// Sends failed messages, as a dead-letter consumer would.
    async fn send(self: Arc<Self>, mut dice: Dice) {
        let mut line = Line::new(&self.url);
        while !self.is_enough.load(Ordering::Acquire) && !self.is_over() {
            let id = dice.id().to_string();
            let fate = match dice.within(0..100) {
                0..60 => Fate::Handled,
                60..80 => Fate::FailsAgain,
                80..87 => Fate::AlwaysFails,
                87..92 => Fate::NeverCounted,
                92..96 => Fate::Nowhere,
                _ => Fate::Garbage,
            };
            let place = match fate {
                Fate::Nowhere => Place::Nowhere,
                _ if dice.percent(50) => Place::First,
                _ => Place::Second,
            };
            let entry = Entry {
                fate,
                is_sent: false,
                came_back: HashMap::new(),
                reviewed: 0,
                is_handled: false,
                failures: 0,
            };
            self.entries().insert(id.clone(), entry);
            let body = match fate {
                Fate::Garbage => format!("garbage {id}").into_bytes(),
                _ => self.failure(&id, place, 0),
            };
            if line.send(&self.retry_queue(), &body, &properties(&id), || self.may_fail(&id)).await {
                self.sent.fetch_add(1, Ordering::Relaxed);
                if let Some(entry) = self.entries().get_mut(&id) {
                    entry.is_sent = true;
                }
            }
            tokio::time::sleep(dice.millis(0..3)).await;
        }
    }

    fn failure(&self, id: &str, place: Place, count: i32) -> Vec<u8> {
        RetryMessage {
            message_id: id.to_owned(),
            original_payload: id.as_bytes().to_vec(),
            original_queue: self.queue(place),
            error_reason: "it was meant to fail".to_owned(),
            retry_count: count,
            max_retries: MAX_RETRIES,
            next_retry_at_ms: 0,
        }
        .to_protobuf()
    }

    /// Handles returned messages or sends them as failures again, and records arrivals in review.
    async fn consume(self: Arc<Self>, place: Place) {
        let (mut line, mut back, queue) = (Line::new(&self.url), Line::new(&self.url), self.queue(place));
        while !self.is_over() {
            let Some(fetched) = line.fetch(&queue).await else {
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            };
            if place == Place::Review {
                self.review(&fetched);
            } else if let Some((id, count)) = self.handle(&fetched) {
                // Acknowledges only after the failure is confirmed: a consumer that cannot report a failure must keep the
                // message.
                let failure = self.failure(&id, place, count);
                if !back.send(&self.retry_queue(), &failure, &properties(&id), || self.may_fail(&id)).await {
                    return;
                }
            }
            fetched.acknowledge().await;
        }
    }

    /// Returns its id and retry count if it fails.
    fn handle(&self, fetched: &Fetched) -> Option<(String, i32)> {
        let id = String::from_utf8_lossy(fetched.body()).into_owned();
        let (named, count) = (fetched.text(header::MESSAGE_ID), fetched.number(header::RETRY_COUNT));
        let mut entries = self.entries();
        let (Some(entry), Some(count)) = (entries.get_mut(&id), count) else {
            drop(entries);
            self.complain(format!("{id} has come back with the count {count:?}, and is unknown"));
            return None;
        };
        if named.as_deref() != Some(id.as_str()) {
            drop(entries);
            self.complain(format!("{id} has come back as {named:?}"));
            return None;
        }
        // The broker redelivers an unacknowledged message.
        let times = entry.came_back.entry(count).or_default();
        if !fetched.is_again() || *times == 0 {
            *times += 1;
        }
        let fails = match entry.fate {
            Fate::Handled => false,
            Fate::FailsAgain => count < 2,
            _ => true,
        };
        entry.is_handled |= !fails;
        let sent_count = if entry.fate == Fate::NeverCounted { 0 } else { count };
        fails.then(|| (id, i32::try_from(sent_count).unwrap_or(i32::MAX)))
    }

    fn review(&self, fetched: &Fetched) {
        let body: serde_json::Value = serde_json::from_slice(fetched.body()).unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let payload = text(&body["payload"]["text"]);
        // An unreadable message has no id but its bytes.
        let id = payload.strip_prefix("garbage ").unwrap_or(&payload).to_owned();
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&id) else {
            drop(entries);
            return self.complain(format!("in review, and is unknown: {body}"));
        };
        if !fetched.is_again() || entry.reviewed == 0 {
            entry.reviewed += 1;
        }
        let reason = text(&body["reason"]);
        // A message whose copies failed more often than the retry limit belongs there, whatever became of the others.
        let is_exhausted =
            reason == "retries_exhausted" && entry.failures > u64::from(MAX_RETRIES.unsigned_abs());
        let expected = match entry.fate {
            Fate::AlwaysFails | Fate::NeverCounted => "retries_exhausted",
            Fate::Garbage => "undecodable",
            _ => "unroutable",
        };
        let is_expected = reason == expected || self.deletes && reason == "unroutable" || is_exhausted;
        let is_wrong =
            matches!(entry.fate, Fate::Handled | Fate::FailsAgain) && !self.deletes && !is_exhausted;
        drop(entries);
        if is_wrong || !is_expected {
            self.complain(format!("{id} is in review: {body}"));
        }
    }
}

fn properties(id: &str) -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/x-protobuf".into())
        .with_delivery_mode(2)
        .with_message_id(lapin::types::ShortString::try_new(id).unwrap_or_default())
}
