//! Everybody around the scheduler: who sends failed messages, who consumes them, and who looks at what is in review.

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

/// A message is retried so often.
const MAX_RETRIES: i32 = 3;

/// Who fetches and finds nothing waits so long.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// What was sent before somebody stood still has arrived after this, also where the broker is short of time.
const STILL: Duration = Duration::from_millis(400);

/// Where messages go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Second,
    /// Does not exist.
    Nowhere,
    Review,
}

/// What becomes of a message when it comes back.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is handled.
    Handled,
    /// It fails once more, and is handled then.
    FailsAgain,
    /// It fails every time.
    AlwaysFails,
    /// It fails every time, and who handles it says that it was never retried.
    NeverCounted,
    /// Its queue does not exist.
    Nowhere,
    /// It is no message at all.
    Garbage,
}

/// What is known of a message.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) fate: Fate,
    /// Whether the broker has it for certain.
    pub(super) is_sent: bool,
    /// How often it came back with each count.
    pub(super) came_back: HashMap<i64, u64>,
    /// How often it came to review.
    pub(super) reviewed: u64,
    /// Whether it was handled.
    pub(super) is_handled: bool,
    /// How often the broker was given a failure of it: a copy that comes twice fails twice, and what was not confirmed is sent again.
    pub(super) failures: u64,
}

impl Entry {
    /// Whether it is where it belongs. Where queues are deleted, every message may end in review.
    pub(super) fn is_settled(&self, deletes: bool) -> bool {
        match self.fate {
            Fate::Handled | Fate::FailsAgain => self.is_handled || deletes && self.reviewed > 0,
            Fate::AlwaysFails | Fate::NeverCounted | Fate::Nowhere | Fate::Garbage => self.reviewed > 0,
        }
    }

    /// How often it came once too often.
    pub(super) fn duplicates(&self) -> u64 {
        self.came_back.values().map(|times| times - 1).sum::<u64>() + self.reviewed.saturating_sub(1)
    }
}

/// What all of them share.
#[derive(Debug)]
pub(super) struct World {
    url: String,
    number: u64,
    deletes: bool,
    pub(super) entries: Mutex<HashMap<String, Entry>>,
    pub(super) complaints: Mutex<Vec<String>>,
    /// Nothing new is sent.
    is_enough: AtomicBool,
    /// Nothing more happens.
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

    /// Whether a failure may be given to the broker, once more; if so, it counts.
    fn may_fail(&self, id: &str) -> bool {
        let may = !self.is_over();
        if let Some(entry) = self.entries().get_mut(id).filter(|_| may) {
            entry.failures += 1;
        }
        may
    }

    /// Makes the queues, and sets everybody to work.
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

    /// Queues of quorum type cannot be deleted on condition, and what is in one that is deleted is gone.
    pub(super) async fn declare(&self, place: Place) -> Result<(), String> {
        let is_quorum = !(self.deletes && place == Place::Second);
        Line::new(&self.url).declare(&self.queue(place), is_quorum).await
    }

    /// Waits until nothing has come to it for a moment, so that nothing is on the way to it.
    pub(super) async fn delete(&self, place: Place) -> Result<(), String> {
        let (mut line, queue) = (Line::new(&self.url), self.queue(place));
        for _ in 0..100 {
            tokio::time::sleep(STILL).await;
            if line.delete_if_empty(&queue).await {
                return Ok(());
            }
        }
        Err(format!("{queue} is never empty"))
    }

    /// Sends failed messages, as the one would who sorts dead letters.
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

    /// Handles what comes back, or sends it as a failure again; and notes what comes to review.
    async fn consume(self: Arc<Self>, place: Place) {
        let (mut line, mut back, queue) = (Line::new(&self.url), Line::new(&self.url), self.queue(place));
        while !self.is_over() {
            let Some(fetched) = line.fetch(&queue).await else {
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            };
            if place == Place::Review {
                self.review(&fetched);
            } else if let Some((id, count)) = self.handle(&fetched) {
                // Acknowledged only then: as who cannot say that it has failed must not forget it.
                let failure = self.failure(&id, place, count);
                if !back.send(&self.retry_queue(), &failure, &properties(&id), || self.may_fail(&id)).await {
                    return;
                }
            }
            fetched.acknowledge().await;
        }
    }

    /// Says whether it fails, and how often it was retried.
    fn handle(&self, fetched: &Fetched) -> Option<(String, i32)> {
        let id = String::from_utf8_lossy(fetched.body()).into_owned();
        let (named, count) = (fetched.text(header::MESSAGE_ID), fetched.number(header::RETRY_COUNT));
        let mut entries = self.entries();
        let (Some(entry), Some(count)) = (entries.get_mut(&id), count) else {
            drop(entries);
            self.complain(format!("{id} has come back with the count {count:?}, and nobody knows it"));
            return None;
        };
        if named.as_deref() != Some(id.as_str()) {
            drop(entries);
            self.complain(format!("{id} has come back as {named:?}"));
            return None;
        }
        // What was not acknowledged in time comes again by the broker's doing.
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
        let told = if entry.fate == Fate::NeverCounted { 0 } else { count };
        fails.then(|| (id, i32::try_from(told).unwrap_or(i32::MAX)))
    }

    fn review(&self, fetched: &Fetched) {
        let body: serde_json::Value = serde_json::from_slice(fetched.body()).unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let payload = text(&body["payload"]["text"]);
        // Of what cannot be read, the bytes are all there is.
        let id = payload.strip_prefix("garbage ").unwrap_or(&payload).to_owned();
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&id) else {
            drop(entries);
            return self.complain(format!("in review, and nobody knows it: {body}"));
        };
        if !fetched.is_again() || entry.reviewed == 0 {
            entry.reviewed += 1;
        }
        let reason = text(&body["reason"]);
        // Whose copies have failed more often than it may be retried is rightly there, whatever has become of the others.
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
