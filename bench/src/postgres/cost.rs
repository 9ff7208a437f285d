//! Server cost of work: WAL bytes and dead row versions.

use std::fmt;
use std::time::{Duration, Instant};

use redrive::retry::BoxError;
use tokio_postgres::Client;

/// Cost per event.
#[derive(Copy, Clone, Debug)]
pub(super) struct Cost {
    /// Bytes of write-ahead log.
    pub(super) log: f64,
    /// Dead row versions: one for each update and each delete.
    pub(super) died: f64,
    /// HOT updates among them, which the next reader of the page can prune.
    pub(super) hot: f64,
    /// Dead rows that are left.
    pub(super) dead: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { log, died, hot, dead } = self;
        write!(f, "{log:.0} bytes of log, {died:.2} versions died, {hot:.2} of them HOT, {dead:.2} are there")
    }
}

/// Counters before the work.
pub(super) struct Meter<'a> {
    admin: &'a Client,
    schema: &'a str,
    log_at: i64,
    before: Counts,
}

/// Row versions in a schema.
#[derive(Copy, Clone, Default)]
struct Counts {
    inserted: i64,
    updated: i64,
    hot: i64,
    deleted: i64,
    dead: i64,
}

impl<'a> Meter<'a> {
    pub(super) async fn start(admin: &'a Client, schema: &'a str) -> Result<Self, BoxError> {
        // So that neither side pays for full-page writes after a checkpoint of the other.
        admin.batch_execute("CHECKPOINT").await?;
        let before = counts(admin, schema).await?;
        Ok(Meter { admin, schema, log_at: log_at(admin).await?, before })
    }

    /// Call it after all working connections are closed: only then are their statistics complete.
    pub(super) async fn stop(self, events: u32) -> Result<Cost, BoxError> {
        let log = log_at(self.admin).await? - self.log_at;
        let until = Instant::now() + Duration::from_secs(5);
        let mut after = counts(self.admin, self.schema).await?;
        while after.inserted - self.before.inserted < i64::from(events) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
            after = counts(self.admin, self.schema).await?;
        }
        tokio::time::sleep(Duration::from_millis(200)).await; // the last backend may still report
        let after = counts(self.admin, self.schema).await?;
        #[allow(clippy::cast_precision_loss)] // exact for numbers of this size
        let each = |count: i64| count as f64 / f64::from(events);
        let died = after.updated + after.deleted - self.before.updated - self.before.deleted;
        Ok(Cost {
            log: each(log),
            died: each(died),
            hot: each(after.hot - self.before.hot),
            dead: each(after.dead - self.before.dead),
        })
    }
}

async fn log_at(admin: &Client) -> Result<i64, BoxError> {
    let position = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    Ok(admin.query_one(position, &[]).await?.get(0))
}

async fn counts(admin: &Client, schema: &str) -> Result<Counts, BoxError> {
    let row = admin
        .query_one(
            "SELECT coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd), 0)::bigint,
                    coalesce(sum(n_tup_hot_upd), 0)::bigint, coalesce(sum(n_tup_del), 0)::bigint,
                    coalesce(sum(n_dead_tup), 0)::bigint
             FROM pg_stat_user_tables WHERE schemaname = $1",
            &[&schema],
        )
        .await?;
    Ok(Counts {
        inserted: row.get(0),
        updated: row.get(1),
        hot: row.get(2),
        deleted: row.get(3),
        dead: row.get(4),
    })
}
