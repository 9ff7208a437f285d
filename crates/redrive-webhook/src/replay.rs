//! Replay jobs: send an endpoint's dead letters to it again, at a bounded rate, across restarts.
//!
//! A job is a document with a lease. The process that runs it renews the lease and stores a cursor before every page. After a crash
//! another process continues at the cursor, so at most one page is sent twice.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redrive::dlq::{DlqCursor, DlqFilter, DlqPage};
use redrive::retry::Timestamp;
use redrive::store::Replayed;
use redrive_store::{Document, DocumentKey, Store, StoreError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::endpoint::EndpointId;
use crate::id;

pub(crate) const KIND: &str = "replay";

/// Maximum dead letters per page.
const PAGE_SIZE: u32 = 100;

/// Jobs that one process runs at once.
const MAX_CONCURRENT: usize = 8;

/// A job whose lease was not renewed for this long is free.
const LEASE: Duration = Duration::from_secs(15);

/// Maximum number of jobs on record; the oldest finished job is deleted first.
const MAX_JOBS: usize = 1000;

/// Default rate in deliveries per second.
const DEFAULT_RATE: f64 = 100.0;

/// Allowed rates in deliveries per second.
pub const REPLAY_RATE: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// Identifier of a job: `rp_` and 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ReplayId(String);

const PREFIX: &str = "rp_";

impl fmt::Display for ReplayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ReplayId {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        id::parse(text, PREFIX).map(ReplayId).map_err(|text| ReplayError::Id { text })
    }
}

/// State of a job.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayState {
    /// Running, or waiting for a process to run it.
    Running,
    /// All dead letters were sent again.
    Done,
    /// Cancelled by a request. Deliveries already sent are not undone.
    Cancelled,
}

impl ReplayState {
    /// Name of the state in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplayState::Running => "running",
            ReplayState::Done => "done",
            ReplayState::Cancelled => "cancelled",
        }
    }
}

/// Selection and rate of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayRequest {
    /// Only events published at or after this time.
    pub since: Option<Timestamp>,
    /// Only events published before this time.
    pub until: Option<Timestamp>,
    /// Deliveries per second; 100 by default.
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
    /// Position of the last dead letter that was processed.
    cursor: Option<String>,
    /// Process that holds the lease, and the time of its last renewal.
    owner: Option<Uuid>,
    renewed_at: Option<Timestamp>,
}

/// A job and the document that it was read from.
#[derive(Debug)]
struct Job {
    document: Document,
    stored: Stored,
}

/// A replay job.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Identifier.
    pub id: ReplayId,
    /// The endpoint that receives the dead letters.
    pub endpoint: EndpointId,
    /// Only events published at or after this time.
    pub since: Option<Timestamp>,
    /// Only events published before this time.
    pub until: Option<Timestamp>,
    /// Deliveries per second.
    pub per_second: f64,
    /// Current state.
    pub state: ReplayState,
    /// Number of dead letters sent again so far.
    pub replayed: u64,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last progress.
    pub updated_at: Timestamp,
}

/// A replay was refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The text is not a replay id.
    #[error("{text:?} is not the id of a replay: it begins with rp_")]
    Id {
        /// The text.
        text: String,
    },
    /// No job has this id.
    #[error("there is no replay {id}")]
    NotFound {
        /// The id.
        id: ReplayId,
    },
    /// The rate is out of range.
    #[error("per_second is not between {} and {}", REPLAY_RATE.start(), REPLAY_RATE.end())]
    Rate,
    /// The limit on running jobs is reached.
    #[error("{MAX_JOBS} replays are running; wait until one has ended, or cancel one")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn key(id: &ReplayId) -> DocumentKey {
    DocumentKey::new(KIND, &id.0).expect("a replay id is a valid document id")
}

fn read(document: Document) -> Option<Job> {
    let stored = serde_json::from_str(&document.body).ok()?;
    Some(Job { document, stored })
}

impl From<Job> for Replay {
    fn from(Job { document, stored }: Job) -> Self {
        Replay {
            id: ReplayId(document.key.id().to_owned()),
            endpoint: stored.endpoint,
            since: stored.since,
            until: stored.until,
            per_second: stored.per_second,
            state: stored.state,
            replayed: stored.replayed,
            created_at: document.created_at,
            updated_at: document.updated_at,
        }
    }
}

fn to_json(stored: &Stored) -> String {
    serde_json::to_string(stored).expect("text and numbers always serialise")
}

fn filter(endpoint: &EndpointId, since: Option<Timestamp>, until: Option<Timestamp>) -> DlqFilter {
    DlqFilter { since, until, subscription: Some(endpoint.subscription()), ..DlqFilter::default() }
}

/// Starts, lists, cancels and runs the replay jobs of one database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Replays {
    store: Arc<dyn Store>,
    /// Identifies this process in leases.
    owner: Uuid,
}

impl Replays {
    /// The replay jobs of this database.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Replays { store, owner: Uuid::new_v4() }
    }

    /// Counts the dead letters that a replay would send (dry run).
    pub async fn count(&self, endpoint: &EndpointId, patch: &ReplayRequest) -> Result<u64, ReplayError> {
        let (mut count, mut after) = (0, None);
        loop {
            let page = DlqPage { offset: 0, limit: 1000, after };
            let found =
                self.store.dead_letter_summaries(filter(endpoint, patch.since, patch.until), page).await?;
            count += found.len() as u64;
            match found.last() {
                Some(last) if found.len() == 1000 => after = Some(last.cursor),
                _ => return Ok(count),
            }
        }
    }

    /// Creates a job. A process with [`Webhooks`](crate::Webhooks) on the same database runs it.
    pub async fn begin(&self, endpoint: EndpointId, patch: ReplayRequest) -> Result<Replay, ReplayError> {
        let per_second = patch.per_second.unwrap_or(DEFAULT_RATE);
        if !REPLAY_RATE.contains(&per_second) {
            return Err(ReplayError::Rate);
        }
        self.prune_finished().await?;
        let ReplayRequest { since, until, .. } = patch;
        let (state, replayed, cursor, owner, renewed_at) = (ReplayState::Running, 0, None, None, None);
        let stored =
            Stored { endpoint, since, until, per_second, state, replayed, cursor, owner, renewed_at };
        let id = ReplayId(id::generate(PREFIX));
        let document = self.store.create(key(&id), to_json(&stored)).await?;
        Ok(Job { document, stored }.into())
    }

    /// Deletes the oldest finished job if the limit is reached.
    async fn prune_finished(&self) -> Result<(), ReplayError> {
        if self.store.versions(KIND).await?.len() < MAX_JOBS {
            return Ok(());
        }
        let limit = u32::try_from(MAX_JOBS).unwrap_or(u32::MAX);
        for document in self.store.documents(KIND, None, limit).await? {
            let (key, version) = (document.key.clone(), document.version);
            if read(document).is_none_or(|job| job.stored.state != ReplayState::Running) {
                self.store.remove(key, Some(version)).await?;
                return Ok(());
            }
        }
        Err(ReplayError::TooMany)
    }

    /// Reads one job.
    pub async fn get(&self, id: &ReplayId) -> Result<Replay, ReplayError> {
        self.job(id).await.map(Replay::from)
    }

    async fn job(&self, id: &ReplayId) -> Result<Job, ReplayError> {
        let document = self.store.document(key(id)).await?;
        document.and_then(read).ok_or_else(|| ReplayError::NotFound { id: id.clone() })
    }

    /// Writes a job. Returns `false` if it was changed since it was read.
    async fn write(&self, job: &mut Job) -> Result<bool, StoreError> {
        let (key, version) = (job.document.key.clone(), job.document.version);
        match self.store.replace(key, version, to_json(&job.stored)).await {
            Ok(document) => job.document = document,
            Err(StoreError::DocumentChanged { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Lists jobs after the given one, in order of creation.
    pub async fn list(&self, after: Option<&ReplayId>, limit: u32) -> Result<Vec<Replay>, ReplayError> {
        let documents = self.store.documents(KIND, after.map(key), limit).await?;
        Ok(documents.into_iter().filter_map(read).map(Replay::from).collect())
    }

    /// Cancels a job. Deliveries already sent are not undone; the rest stays in the dead-letter queue.
    pub async fn cancel(&self, id: &ReplayId) -> Result<Replay, ReplayError> {
        loop {
            let mut job = self.job(id).await?;
            if job.stored.state != ReplayState::Running {
                return Ok(job.into());
            }
            job.stored.state = ReplayState::Cancelled;
            // A job that made progress meanwhile is read again.
            if self.write(&mut job).await? {
                return Ok(job.into());
            }
        }
    }

    /// Runs free jobs, also those of crashed processes, until the store is closed.
    pub(crate) async fn run_all(self, poll_interval: Duration) {
        let mut jobs = JoinSet::new();
        loop {
            while jobs.try_join_next().is_some() {}
            let free = if jobs.len() < MAX_CONCURRENT { self.free().await } else { Ok(Vec::new()) };
            match free {
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::error!(target: "redrive::webhook", %error, "could not list replay jobs");
                }
                Ok(free) => {
                    for job in free.into_iter().take(MAX_CONCURRENT - jobs.len()) {
                        let replays = self.clone();
                        jobs.spawn(async move {
                            if let Err(error) = replays.run(job).await {
                                tracing::error!(target: "redrive::webhook", %error, "a replay was interrupted; it continues when its lease has expired");
                            }
                        });
                    }
                }
            }
            tokio::time::sleep(poll_interval).await;
        }
    }

    /// Running jobs whose lease is free or expired.
    async fn free(&self) -> Result<Vec<Job>, StoreError> {
        let limit = u32::try_from(MAX_JOBS).unwrap_or(u32::MAX);
        let now = self.store.clock().now();
        let free = |document: Document| {
            let job = read(document)?;
            let is_free = job.stored.owner.is_none()
                || job.stored.renewed_at.is_none_or(|at| now.since(at) >= LEASE || at > now + LEASE);
            (job.stored.state == ReplayState::Running && is_free).then_some(job)
        };
        Ok(self.store.documents(KIND, None, limit).await?.into_iter().filter_map(free).collect())
    }

    /// Runs a job until it is done or cancelled, or another process has its lease.
    async fn run(&self, mut job: Job) -> Result<(), StoreError> {
        loop {
            let began = tokio::time::Instant::now();
            job.stored.owner = Some(self.owner);
            job.stored.renewed_at = Some(self.store.clock().now());
            // The lease is renewed before the page: a version conflict means that the job was cancelled or taken over.
            if !self.write(&mut job).await? || job.stored.state != ReplayState::Running {
                return Ok(());
            }
            let Job { document, stored } = &mut job;
            let after: Option<DlqCursor> = stored.cursor.as_deref().and_then(|cursor| cursor.parse().ok());
            // A page takes at most a third of the lease, so that the lease is renewed in time.
            let limit = count_within(stored.per_second, LEASE / 3).clamp(1, PAGE_SIZE);
            let filter = filter(&stored.endpoint, stored.since, stored.until);
            let page = DlqPage { offset: 0, limit, after };
            let found = self.store.dead_letter_summaries(filter, page).await?;
            let to = stored.endpoint.subscription();
            for letter in &found {
                // A letter that died after the job began was already replayed.
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
                continue; // stores the state, then returns
            }
            let share = Duration::from_secs_f64(found.len() as f64 / stored.per_second);
            tokio::time::sleep_until(began + share).await;
        }
    }
}

fn count_within(per_second: f64, time: Duration) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the cast saturates
    let count = (per_second * time.as_secs_f64()) as u32;
    count
}
