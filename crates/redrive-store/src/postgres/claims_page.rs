//! Reads the claims of one process from the database, page by page in key order.
//!
//! There is no index over running rows, so a reader scans the table from the oldest key that the process may own. A page is
//! a range of the primary key, small enough that every statement is short, however large the table is. Pages miss no claim
//! as long as the process claims no older key meanwhile, or the reader does not look for such claims.

use tokio_postgres::Error;

use super::session::Session;
use crate::work::ClaimKey;

/// The table of events or of deliveries.
pub(super) struct Table {
    select_page: &'static str,
    /// Makes the claim key of a row. The event of a delivery does not matter here.
    pub(super) claim_key: fn(i64) -> ClaimKey,
}

/// Selects the last key of the page, and keys and tokens of the process's claims in it.
macro_rules! select_page {
    ($table:literal) => {
        concat!(
            "SELECT max(key), coalesce(array_agg(key) FILTER (WHERE is_owned), '{}'),
                    coalesce(array_agg(token) FILTER (WHERE is_owned), '{}')
             FROM (SELECT key, token, status = 1 AND owner = $1 AS is_owned FROM redrive.",
            $table,
            " WHERE key >= $2 ORDER BY key LIMIT 5000) page"
        )
    };
}

pub(super) const EVENTS: Table = Table { select_page: select_page!("event"), claim_key: ClaimKey::Event };

pub(super) const DELIVERIES: Table = Table {
    select_page: select_page!("delivery"),
    claim_key: |key| ClaimKey::Delivery { delivery: key, event: 0 },
};

/// A page of claims.
pub(super) struct Page {
    pub(super) keys: Vec<i64>,
    pub(super) tokens: Vec<i64>,
    /// The first key of the next page.
    pub(super) next: i64,
}

impl Table {
    /// Reads the page that begins at `from`. Returns `None` at the end of the table.
    pub(super) async fn page(&self, session: &Session, owner: i64, from: i64) -> Result<Option<Page>, Error> {
        let found = session.query_first(self.select_page, &[&owner, &from]).await?;
        Ok(found.and_then(|row| {
            let last: i64 = row.get::<_, Option<i64>>(0)?;
            Some(Page { keys: row.get(1), tokens: row.get(2), next: last.saturating_add(1) })
        }))
    }
}
