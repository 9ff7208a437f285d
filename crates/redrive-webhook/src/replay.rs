//! A replay: everything that an endpoint has given up since some time goes to it again, as a job that outlives its process.
//!
//! The job is a document. Whoever works on it says so in it every few seconds; if nobody has for a while, another process goes on
//! where it stopped. How far it has come is written down after every page, so at most a page is given to the endpoint twice.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redrive::{DlqCursor, DlqFilter, DlqPage, Replayed, SubscriptionName, Timestamp};
use redrive_store::{Document, DocumentKey, Store, StoreError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::endpoint::EndpointId;

pub(crate) const KIND: &str = "replay";

/// So many at a time.
const PAGE: u32 = 100;

/// Who has not said anything for so long has died.
const LEASE: Duration = Duration::from_secs(15);

/// The most jobs on record; the oldest that have ended are forgotten.
const MOST: usize = 1000;

/// How fast, if nobody says so.
const USUAL_RATE: f64 = 100.0;

/// How fast it may be.
pub const REPLAY_RATE: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// The name of a job: `rp_` and 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ReplayId(String);

impl fmt::Display for ReplayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ReplayId {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        let is_hex = |digits: &str| {
            digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        match text.strip_prefix("rp_") {
            Some(digits) if is_hex(digits) => Ok(ReplayId(text.to_owned())),
            _ => Err(ReplayError::Id { text: text.chars().take(64).collect() }),
        }
    }
}

/// Where a job stands.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayState {
    /// It is worked on, or will be.
    Running,
    /// Everything went to the endpoint again.
    Done,
    /// Somebody has stopped it. What has gone stays gone.
    Cancelled,
}

/// What is wanted.
#[derive(Clone, Debug, Default)]
pub struct ReplayWish {
    /// Only what was published at or after this.
    pub since: Option<Timestamp>,
    /// Only what was published before this.
    pub until: Option<Timestamp>,
    /// How many in a second.
    pub per_second: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    endpoint: EndpointId,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    per_second: f64,
    state: ReplayState,
    replayed: u64,
    /// The last one that was looked at.
    cursor: Option<String>,
    /// Who works on it, and when it last said so.
    owner: Option<Uuid>,
    beat_at: Option<Timestamp>,
}

/// A job as it was found.
#[derive(Debug)]
pub(crate) struct Job {
    document: Document,
    stored: Stored,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Its name.
    pub id: ReplayId,
    /// To whom.
    pub endpoint: EndpointId,
    /// Only what was published at or after this.
    pub since: Option<Timestamp>,
    /// Only what was published before this.
    pub until: Option<Timestamp>,
    /// How many in a second.
    pub per_second: f64,
    /// Where it stands.
    pub state: ReplayState,
    /// How many have gone to the endpoint again.
    pub replayed: u64,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When it last went on.
    pub updated_at: Timestamp,
}

/// Why there is no such job.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Not an id.
    #[error("{text:?} is not the id of a replay: it begins with rp_")]
    Id {
        /// What was given.
        text: String,
    },
    /// It is not there.
    #[error("there is no replay {id}")]
    NotFound {
        /// Its name.
        id: ReplayId,
    },
    /// Too fast or too slow.
    #[error("per_second is not between {} and {}", REPLAY_RATE.start(), REPLAY_RATE.end())]
    Rate,
    /// Too many at once.
    #[error("{MOST} replays are running; wait until one has ended, or cancel one")]
    TooMany,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn key(id: &ReplayId) -> DocumentKey {
    DocumentKey::new(KIND, &id.0).expect("an id of a replay is one of a document")
}

fn read(document: &Document) -> Option<(Stored, Replay)> {
    let stored: Stored = serde_json::from_str(&document.body).ok()?;
    let replay = Replay {
        id: ReplayId(document.key.id().to_owned()),
        endpoint: stored.endpoint.clone(),
        since: stored.since,
        until: stored.until,
        per_second: stored.per_second,
        state: stored.state,
        replayed: stored.replayed,
        created_at: document.created_at,
        updated_at: document.updated_at,
    };
    Some((stored, replay))
}

fn written(stored: &Stored) -> String {
    serde_json::to_string(stored).expect("text and numbers always serialise")
}

fn filter(endpoint: &EndpointId, since: Option<Timestamp>, until: Option<Timestamp>) -> DlqFilter {
    let name = SubscriptionName::new(endpoint.as_str()).expect("an id of an endpoint is a name");
    DlqFilter { since, until, subscription: Some(name), ..DlqFilter::default() }
}

/// The replays in one database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Replays {
    store: Arc<dyn Store>,
    /// This process.
    owner: Uuid,
}

impl Replays {
    /// Those in this database.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Replays { store, owner: Uuid::new_v4() }
    }

    /// How many would go to the endpoint, without doing anything.
    pub async fn count(&self, endpoint: &EndpointId, wish: &ReplayWish) -> Result<u64, ReplayError> {
        let (mut count, mut after) = (0, None);
        loop {
            let page = DlqPage { offset: 0, limit: 1000, after };
            let found =
                self.store.dead_letters_in_short(filter(endpoint, wish.since, wish.until), page).await?;
            count += found.len() as u64;
            match found.last() {
                Some(last) if found.len() == 1000 => after = Some(last.cursor),
                _ => return Ok(count),
            }
        }
    }

    /// Begins a job. Some running server works on it.
    pub async fn begin(&self, endpoint: EndpointId, wish: ReplayWish) -> Result<Replay, ReplayError> {
        let per_second = wish.per_second.unwrap_or(USUAL_RATE);
        if !REPLAY_RATE.contains(&per_second) {
            return Err(ReplayError::Rate);
        }
        self.make_room().await?;
        let ReplayWish { since, until, .. } = wish;
        let (state, replayed, cursor, owner, beat_at) = (ReplayState::Running, 0, None, None, None);
        let stored = Stored { endpoint, since, until, per_second, state, replayed, cursor, owner, beat_at };
        let id = ReplayId(format!("rp_{}", Uuid::now_v7().simple()));
        let document = self.store.create(key(&id), written(&stored)).await?;
        Ok(read(&document).expect("what was just written can be read").1)
    }

    async fn make_room(&self) -> Result<(), ReplayError> {
        if self.store.versions(KIND).await?.len() < MOST {
            return Ok(());
        }
        let limit = u32::try_from(MOST).unwrap_or(u32::MAX);
        for document in self.store.documents(KIND, None, limit).await? {
            if read(&document).is_none_or(|(stored, _)| stored.state != ReplayState::Running) {
                self.store.remove(document.key, Some(document.version)).await?;
                return Ok(());
            }
        }
        Err(ReplayError::TooMany)
    }

    /// One of them.
    pub async fn get(&self, id: &ReplayId) -> Result<Replay, ReplayError> {
        let document = self.store.document(key(id)).await?;
        let found = document.as_ref().and_then(read).map(|(_, replay)| replay);
        found.ok_or_else(|| ReplayError::NotFound { id: id.clone() })
    }

    /// Those behind this one, in the order in which they were begun.
    pub async fn list(&self, after: Option<&ReplayId>, limit: u32) -> Result<Vec<Replay>, ReplayError> {
        let documents = self.store.documents(KIND, after.map(key), limit).await?;
        Ok(documents.iter().filter_map(read).map(|(_, replay)| replay).collect())
    }

    /// Stops one. What has gone to the endpoint stays gone; the rest stays in the dead-letter queue.
    pub async fn cancel(&self, id: &ReplayId) -> Result<Replay, ReplayError> {
        loop {
            let document = self.store.document(key(id)).await?;
            let document = document.ok_or_else(|| ReplayError::NotFound { id: id.clone() })?;
            let Some((stored, replay)) = read(&document) else {
                return Err(ReplayError::NotFound { id: id.clone() });
            };
            if stored.state != ReplayState::Running {
                return Ok(replay);
            }
            let stored = Stored { state: ReplayState::Cancelled, ..stored };
            match self.store.replace(key(id), document.version, written(&stored)).await {
                Ok(document) => {
                    return read(&document)
                        .map(|(_, replay)| replay)
                        .ok_or(ReplayError::NotFound { id: id.clone() });
                }
                Err(StoreError::DocumentChanged { .. }) => {} // it has gone on a page
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Those that nobody works on.
    pub(crate) async fn free(&self) -> Result<Vec<Job>, StoreError> {
        let limit = u32::try_from(MOST).unwrap_or(u32::MAX);
        let now = self.store.clock().now();
        let free = |document: Document| {
            let (stored, _) = read(&document)?;
            let is_free = stored.owner.is_none()
                || stored.beat_at.is_none_or(|beat| now.since(beat) >= LEASE || beat > now + LEASE);
            (stored.state == ReplayState::Running && is_free).then_some(Job { document, stored })
        };
        Ok(self.store.documents(KIND, None, limit).await?.into_iter().filter_map(free).collect())
    }

    /// Works on one until it is done, or somebody else is at it.
    pub(crate) async fn run(&self, job: Job) -> Result<(), StoreError> {
        let Job { mut document, mut stored } = job;
        loop {
            let began = tokio::time::Instant::now();
            stored.owner = Some(self.owner);
            stored.beat_at = Some(self.store.clock().now());
            // First said, then done: whoever else wants it is told here, and whoever has stopped it is heard.
            match self.store.replace(document.key.clone(), document.version, written(&stored)).await {
                Ok(written) => document = written,
                Err(StoreError::DocumentChanged { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
            if stored.state != ReplayState::Running {
                return Ok(());
            }
            let after: Option<DlqCursor> = stored.cursor.as_deref().and_then(|cursor| cursor.parse().ok());
            // No more than can go within the lease, so that it is renewed in time.
            let limit = most_within(stored.per_second, LEASE / 3).clamp(1, PAGE);
            let found = self
                .store
                .dead_letters_in_short(
                    filter(&stored.endpoint, stored.since, stored.until),
                    DlqPage { offset: 0, limit, after },
                )
                .await?;
            let filter = filter(&stored.endpoint, None, None);
            let to = filter.subscription.expect("it was just set");
            for letter in &found {
                // What has died since the job was begun has had its second chance.
                if letter.dlq_at < document.created_at {
                    let now = self.store.clock().now();
                    match self.store.replay(letter.id, to.clone(), now).await {
                        Ok(Replayed::Again) => stored.replayed += 1,
                        Ok(Replayed::Open) | Err(StoreError::NoSuchEvent { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                stored.cursor = Some(letter.cursor.to_string());
            }
            if found.len() < limit as usize {
                stored.state = ReplayState::Done;
                continue; // written down, and then over
            }
            let share = Duration::from_secs_f64(found.len() as f64 / stored.per_second);
            tokio::time::sleep_until(began + share).await;
        }
    }
}

fn most_within(per_second: f64, time: Duration) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates, which is what is meant
    let most = (per_second * time.as_secs_f64()) as u32;
    most
}
