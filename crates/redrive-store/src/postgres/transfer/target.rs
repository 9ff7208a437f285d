//! The schema that everything is moved to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::types::Value as Cell;
use tokio_postgres::error::SqlState;

use super::super::address::Address;
use super::super::connector::{Connector, Purpose};
use super::super::names::Names;
use super::super::session::Session;
use super::super::value::Value;
use super::super::{PostgresOptions, checks, failure, schema};
use super::source::Rows;
use super::table::Table;
use crate::error::StoreError;

/// There while not everything is there: nobody opens the schema meanwhile.
const MARK: &str = "CREATE TABLE redrive.transfer (at timestamptz NOT NULL DEFAULT now())";
const UNMARK: &str = "DROP TABLE redrive.transfer";

const LIVING: &str = "
    SELECT instance FROM redrive.process WHERE beats_at + lease_ms > redrive.now_ms() ORDER BY key LIMIT 1";

/// A process that is dead, and held what was running in the file when its own process died: whoever starts takes it back and
/// charges the attempt, as it would have been. None if nothing was running.
const DECLARE_DEAD: &str = "
    WITH held AS (
      SELECT (SELECT min(key) FROM redrive.event WHERE status = 1) AS event,
             (SELECT min(key) FROM redrive.delivery WHERE status = 1) AS delivery)
    INSERT INTO redrive.process (boot, instance, pid, has_lock, started_at, beats_at, lease_ms, void_until,
                                 oldest_event, oldest_delivery)
    SELECT gen_random_uuid(), 'before the transfer', 0, false, 0, 0, 0, 0,
           coalesce(event, 9223372036854775807), coalesce(delivery, 9223372036854775807)
    FROM held WHERE event IS NOT NULL OR delivery IS NOT NULL
    RETURNING key";
const HOLD_EVENTS: &str = "UPDATE redrive.event SET owner = $1 WHERE status = 1";
const HOLD_DELIVERIES: &str = "UPDATE redrive.delivery SET owner = $1 WHERE status = 1";

/// Whatever waits may be claimed from now on.
macro_rules! release {
    ($table:literal) => {
        concat!(
            "UPDATE redrive.",
            $table,
            " SET ready_at = CASE status WHEN -1 THEN -1 ELSE greatest(due_at, 0) END WHERE status IN (-1, 0, 2)"
        )
    };
}

#[derive(Debug)]
pub(super) struct Target {
    session: Session,
    names: Arc<Names>,
    patience: Duration,
}

impl Target {
    /// Changes nothing yet.
    pub(super) async fn connect(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (config, options) = address.parse::<Address>()?.with(options);
        let names = Arc::new(Names::new(&options.schema)?);
        let timeout = options.statement_timeout.as_millis();
        let settings = format!("-c idle_in_transaction_session_timeout={timeout} -c jit=off");
        let ca_certificate = options.ca_certificate.as_deref();
        let (poll_only, durability) = (options.poll_only, options.durability);
        let connector = Connector::new(
            config,
            Arc::clone(&names),
            poll_only,
            durability,
            settings,
            None,
            ca_certificate,
        )?;
        let session = connector.connect(Purpose::Other, Instant::now()).await?;
        checks::check(&session, options.durability).await?;
        Ok(Target { session, names, patience: options.patience })
    }

    pub(super) fn schema(&self) -> &str {
        self.names.schema()
    }

    /// Whether it was made, and whether a transfer into it has not come to its end.
    pub(super) async fn state(&self) -> Result<(bool, bool), StoreError> {
        let is_there = schema::is_there(&self.session, &self.names).await?;
        Ok((is_there, is_there && schema::is_unfinished(&self.session, &self.names).await?))
    }

    /// Makes the schema, or brings it up to date.
    pub(super) async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&self.session, &self.names, self.patience).await
    }

    /// Who dispatches from it, if anybody does.
    pub(super) async fn living(&self) -> Result<Option<String>, StoreError> {
        let found = self.query(LIVING, &[]).await?;
        Ok(found.first().map(|row| row.get(0)))
    }

    async fn query(&self, text: &str, values: &[&dyn Value]) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        self.session.query_once(text, values).await.map_err(failure::explain)
    }

    /// Does something as a whole or not at all.
    async fn whole(&self, work: impl AsyncFnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.session.begin().await.map_err(failure::explain)?;
        if let Err(error) = work().await {
            self.session.roll_back().await;
            return Err(error);
        }
        self.session.commit().await.map_err(failure::explain)
    }

    /// From now on it is unfinished, and keys that the server gives out come after these.
    pub(super) async fn begin(&self, largest: &[(&'static Table, i64)]) -> Result<(), StoreError> {
        self.whole(async || {
            self.session.batch(MARK).await.map_err(failure::explain)?;
            for (table, key) in largest {
                let sequence = format!("redrive.{}_{}_seq", table.name, table.key());
                let set = format!("SELECT setval('{sequence}', greatest(last_value, $1)) FROM {sequence}");
                self.query(&set, &[key]).await?;
            }
            Ok(())
        })
        .await
    }

    /// Everything is there: what waits may be claimed, and whoever wants to may open it.
    pub(super) async fn finish(&self) -> Result<(), StoreError> {
        self.whole(async || {
            // However much it is, half of it would be nothing.
            self.session.batch("SET LOCAL statement_timeout = 0").await.map_err(failure::explain)?;
            if let Some(row) = self.query(DECLARE_DEAD, &[]).await?.first() {
                let dead: i64 = row.get(0);
                for statement in [HOLD_EVENTS, HOLD_DELIVERIES] {
                    self.query(statement, &[&dead]).await?;
                }
            }
            for statement in [release!("event"), release!("delivery")] {
                self.query(statement, &[]).await?;
            }
            self.session.batch(UNMARK).await.map_err(failure::explain)
        })
        .await?;
        // So that the first claims go by their indexes.
        self.session.batch("ANALYZE redrive.event; ANALYZE redrive.delivery").await.map_err(failure::explain)
    }

    /// How many rows it has. A table that an older release did not make has none.
    pub(super) async fn count(&self, table: &Table) -> Result<u64, StoreError> {
        match self.query(&table.count_target(), &[]).await {
            Err(StoreError::Server { source, .. }) if source.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                Ok(0)
            }
            found => Ok(found?.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs())),
        }
    }

    /// The rows with the keys of these, in whatever order.
    pub(super) async fn rows_like(&self, table: &Table, rows: &[Vec<Cell>]) -> Result<Rows, StoreError> {
        let keys = table.columns[0].kind.values(rows.iter().map(|row| &row[0]));
        let found = self.query(&table.select_target(), &[&*keys]).await?;
        let cells = |row: &tokio_postgres::Row| {
            table.columns.iter().enumerate().map(|(place, column)| column.kind.read(row, place)).collect()
        };
        Ok(found.iter().map(cells).collect())
    }

    /// A key that is there already is an error: nothing of this table was to be there.
    pub(super) async fn insert(&self, table: &Table, rows: &[Vec<Cell>]) -> Result<(), StoreError> {
        let values: Vec<Box<dyn Value>> = table
            .columns
            .iter()
            .enumerate()
            .map(|(place, column)| column.kind.values(rows.iter().map(|row| &row[place])))
            .collect();
        let values: Vec<&dyn Value> = values.iter().map(|value| &**value).collect();
        self.query(&table.insert(), &values).await.map(drop)
    }
}
