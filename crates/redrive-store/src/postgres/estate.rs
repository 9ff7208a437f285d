//! What stands in the database as held by one process, read page by page in the order of the keys.
//!
//! There is no index over what is running, so whoever looks reads the table from the oldest key that the process may hold. A page
//! is a range of the key's index, small enough that no statement takes long, however large the table is. Nothing is missed
//! between two pages as long as nothing is added that is older than the page: the process claims nothing meanwhile, or what it
//! claims is not looked for.

use tokio_postgres::Error;

use super::session::Session;
use crate::work::UnitKey;

/// One of the two tables.
pub(super) struct Table {
    look: &'static str,
    /// What a process was doing when it died goes back, and is charged. See `recover`.
    pub(super) take_back: &'static str,
    /// What a process holds without knowing goes back. See `reconcile`.
    pub(super) release: &'static str,
    /// Of which event a delivery is does not matter here.
    pub(super) unit: fn(i64) -> UnitKey,
}

/// Of those on this page that the process holds, keys and tokens; and where the page ends.
macro_rules! look {
    ($table:literal) => {
        concat!(
            "SELECT max(key), coalesce(array_agg(key) FILTER (WHERE is_held), '{}'),
                    coalesce(array_agg(token) FILTER (WHERE is_held), '{}')
             FROM (SELECT key, token, status = 1 AND owner = $1 AS is_held FROM redrive.",
            $table,
            " WHERE key >= $2 ORDER BY key LIMIT 5000) page"
        )
    };
}

pub(super) const EVENTS: Table = Table {
    look: look!("event"),
    take_back: super::recover::TAKE_EVENTS_BACK,
    release: super::reconcile::RELEASE_EVENTS,
    unit: UnitKey::Event,
};

pub(super) const DELIVERIES: Table = Table {
    look: look!("delivery"),
    take_back: super::recover::TAKE_DELIVERIES_BACK,
    release: super::reconcile::RELEASE_DELIVERIES,
    unit: |key| UnitKey::Delivery { delivery: key, event: 0 },
};

/// A part of what a process holds.
pub(super) struct Page {
    pub(super) keys: Vec<i64>,
    pub(super) tokens: Vec<i64>,
    /// Where the next one begins.
    pub(super) next: i64,
}

impl Table {
    /// The page that begins at this key; `None` at the end of the table.
    pub(super) async fn page(&self, session: &Session, owner: i64, from: i64) -> Result<Option<Page>, Error> {
        let found = session.query(self.look, &[&owner, &from]).await?;
        Ok(found.first().and_then(|row| {
            let last: i64 = row.get::<_, Option<i64>>(0)?;
            Some(Page { keys: row.get(1), tokens: row.get(2), next: last.saturating_add(1) })
        }))
    }
}
