//! `/v1/replays`: send dead letters of an endpoint to it again.

use serde::{Deserialize, Serialize};

use crate::client::{Call, Paged, Repeat, Result, encoded, requests};
use crate::open_enum::open_enum;
use crate::page::{Page, PageQuery};
use crate::time::Time;

open_enum! {
    /// State of a replay.
    pub enum ReplayState {
        /// The server sends events, or will.
        Running = "running",
        /// Every event was sent.
        Done = "done",
        /// A person stopped it.
        Cancelled = "cancelled",
    }
}

/// The endpoint that gets an event again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayEvent {
    /// Id of the endpoint.
    #[cfg_attr(feature = "schema", schema(pattern = "^ep_[0-9a-f]{32}$"))]
    pub endpoint: String,
}

/// Whether an event goes to an endpoint again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventReplayed {
    /// `false` while the delivery is still open.
    pub replayed: bool,
}

/// Selects the dead letters of an endpoint to send again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeginReplay {
    /// Only events published at or after this time.
    pub since: Option<Time>,
    /// Only events published before this time.
    pub until: Option<Time>,
    /// Events per second; 100 by default.
    #[cfg_attr(feature = "schema", schema(minimum = 0.1, maximum = 10_000))]
    pub per_second: Option<f64>,
    /// Count the events and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReplayCount {
    /// Number of events that would be sent.
    pub would_replay: u64,
}

/// A replay: a job that survives a restart of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Replay {
    /// Id of the replay.
    #[cfg_attr(
        feature = "schema",
        schema(pattern = "^rp_[0-9a-f]{32}$", example = "rp_0190b3c47d2e7a118f006d5e4c3b2a19")
    )]
    pub id: String,
    /// Id of the endpoint.
    #[cfg_attr(feature = "schema", schema(pattern = "^ep_[0-9a-f]{32}$"))]
    pub endpoint: String,
    /// Only events published at or after this time.
    pub since: Option<Time>,
    /// Only events published before this time.
    pub until: Option<Time>,
    /// Events per second.
    pub per_second: f64,
    /// State of the job.
    pub state: ReplayState,
    /// Number of events sent so far.
    pub replayed: u64,
    /// The time at which the replay was started.
    pub created_at: Time,
    /// The time of the last change of the replay.
    pub updated_at: Time,
}

requests! {
    /// Requests on `/v1/replays`.
    Replays,
    /// Looks at replays and cancels them.
    replays
}

impl Replays<'_> {
    /// Returns one page of replays, oldest first.
    pub async fn list(&self, page: &PageQuery) -> Result<Page<Replay>> {
        self.0.get("/v1/replays", page).await
    }

    /// Iterates over all replays, oldest first.
    pub fn all(&self) -> Paged<Replay> {
        self.0.all("/v1/replays", &())
    }

    /// Returns one replay.
    pub async fn get(&self, id: &str) -> Result<Replay> {
        self.0.get(&format!("/v1/replays/{}", encoded(id)), &()).await
    }

    /// Cancels a replay; sent events stay sent.
    pub async fn cancel(&self, id: &str) -> Result<Replay> {
        let path = format!("/v1/replays/{}/cancel", encoded(id));
        self.0.send(&Call::post_empty(&path).repeat(Repeat::Always)).await
    }
}
